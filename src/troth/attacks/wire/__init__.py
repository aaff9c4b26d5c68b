"""Lies on the wire, below the protocol: frames forged, doubled, split and held back."""
