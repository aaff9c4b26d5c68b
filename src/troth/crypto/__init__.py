"""Hashes, named random streams, and (with the protocol) identities, digests, Merkle roots and commitments."""

from troth.crypto.streams import Seed, Stream, derive, stream

__all__ = ["Seed", "Stream", "derive", "stream"]
