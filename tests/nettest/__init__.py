"""Tests that need root and network namespaces, or hivemind: `make nettest` runs them, plain pytest does not."""
