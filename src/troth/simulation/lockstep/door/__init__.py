"""Strangers at the door of a simulated run: who comes, what they hand in, and what becomes of them."""
