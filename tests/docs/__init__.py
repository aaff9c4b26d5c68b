"""Documents are true: what they show is executed, and what it prints is compared."""
