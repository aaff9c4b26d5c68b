"""Loops that are compiled when they are first called. Importing one imports numba, which takes a third of a second."""
