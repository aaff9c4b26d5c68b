"""Strangers that come to a world's door: honest ones, cheats, and one machine under many names."""
