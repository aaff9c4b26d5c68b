"""Iterations to accuracy, measured, against the rates of theory."""

from troth.lab.theory.fits import Fitted, fits

__all__ = ["Fitted", "fits"]
