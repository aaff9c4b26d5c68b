"""Real peers on a real network: manifest, transport, framing, discovery. Empty until then."""
