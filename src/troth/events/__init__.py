"""One stream of events for everything that watches a run: a live member, a simulation and a journal tell the same."""
