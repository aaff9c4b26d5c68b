"""Training states on their way in from outside."""
