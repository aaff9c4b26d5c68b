"""Lies in the protocol itself: wrappers around an honest member's channel."""
