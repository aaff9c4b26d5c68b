"""Connections to keys: TCP with TLS, and libp2p."""
