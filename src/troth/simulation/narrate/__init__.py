"""Narration: what happened in a simulated world, step by step."""
