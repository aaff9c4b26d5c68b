"""One peer as a program: founding, training, events and metrics."""
