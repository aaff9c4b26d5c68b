"""Troth: people who do not trust each other train one neural network together."""

__version__ = "0.1.0"
