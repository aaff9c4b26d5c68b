"""Many honest peers in one process, step by step in turn."""
