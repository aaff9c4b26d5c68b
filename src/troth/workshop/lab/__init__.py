"""Experiments and their pictures."""

from troth.workshop.lab.plots import plot_runs

__all__ = ["plot_runs"]
