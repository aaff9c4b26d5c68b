"""A member from step to step, and its way back after a crash, a network cut, or a stop of the whole run."""
