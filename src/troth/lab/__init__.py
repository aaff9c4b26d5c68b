"""Experiments and their pictures."""

from troth.lab.plots import plot_runs

__all__ = ["plot_runs"]
