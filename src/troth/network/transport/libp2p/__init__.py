"""The libp2p transport, for peers behind NATs."""
