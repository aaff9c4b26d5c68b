"""Training states: on their way in from outside, and from one step to the next."""
