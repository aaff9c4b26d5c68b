"""A peer on a real network: manifest, transports, mesh, disk, node."""
