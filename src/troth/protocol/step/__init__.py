"""One training step as a member runs it: Algorithm 1 of the paper."""
