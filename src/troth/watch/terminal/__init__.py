"""A run in a terminal: the picture that events add up to, and its drawing at any size."""
