"""A simulated run on disk: everything that its next step depends on, so that it goes on bit for bit where it was."""
