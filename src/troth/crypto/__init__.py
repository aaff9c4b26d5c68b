"""Identities, signed bytes, digests, Merkle roots, coin commitments, projections and named random streams."""

from troth.crypto.hashing import (
    CHUNK_BYTES,
    LEAF_BYTES,
    Digest,
    blob_digest,
    blob_digests,
    chunk_hash,
    chunk_hashes,
    digest_of_chunks,
    digest_of_leaves,
    side_by_side,
    smallest_hash,
    tagged_hash,
)
from troth.crypto.identity import Identity, KeyFileError, PeerId, Signature, valid_peer, verify
from troth.crypto.merkle import leaf_hash, merkle_tree, node_hash, root_from_path
from troth.crypto.projection import project, projection_signs, sign_bytes
from troth.crypto.signing import PROTOCOL_VERSION, Slot, coin_commitment, signed_bytes
from troth.crypto.streams import Seed, Stream, derive, stream

__all__ = [
    "CHUNK_BYTES",
    "LEAF_BYTES",
    "PROTOCOL_VERSION",
    "Digest",
    "Identity",
    "KeyFileError",
    "PeerId",
    "Seed",
    "Signature",
    "Slot",
    "Stream",
    "blob_digest",
    "blob_digests",
    "chunk_hash",
    "chunk_hashes",
    "coin_commitment",
    "derive",
    "digest_of_chunks",
    "digest_of_leaves",
    "leaf_hash",
    "merkle_tree",
    "node_hash",
    "project",
    "projection_signs",
    "root_from_path",
    "side_by_side",
    "sign_bytes",
    "signed_bytes",
    "smallest_hash",
    "stream",
    "tagged_hash",
    "valid_peer",
    "verify",
]
