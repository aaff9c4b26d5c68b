"""Digests of several blobs at once are those of each alone, whatever their lengths and whoever hashes them."""

import hashlib

import pytest

from troth.crypto import tagged_hash
from troth.crypto.hashing import CHUNK_BYTES, LEAF_BYTES, blob_digest, blob_digests, chunk_hashes, digest_of_leaves

LENGTHS = [
    [1, 5, 1],
    [LEAF_BYTES, LEAF_BYTES + 1, LEAF_BYTES - 1],
    [0, 3, 0],
    [CHUNK_BYTES, CHUNK_BYTES + 1, CHUNK_BYTES - 1],
    [2 * CHUNK_BYTES + 7, 0, 9, 3 * CHUNK_BYTES],
]


def blobs_of(lengths: list[int]) -> list[bytes]:
    return [bytes([number + 1]) * length for number, length in enumerate(lengths)]


def cut(blob: bytes, width: int) -> list[bytes]:
    return [blob[start : start + width] for start in range(0, len(blob), width)]


def leaf_hashes(blob: bytes) -> bytes:
    return b"".join(
        hashlib.sha256(leaf).digest() for chunk in cut(blob, CHUNK_BYTES) for leaf in cut(chunk, LEAF_BYTES)
    )


def by_definition(blob: bytes) -> bytes:
    """A chunk of 1 MiB: the hash of the hashes of its leaves of 64 KiB, or that of its only leaf. A blob: that of its chunks'."""
    hashes = [leaf_hashes(chunk) for chunk in cut(blob, CHUNK_BYTES)]
    chunks = [one if len(one) == 32 else tagged_hash("troth/chunk/1", one) for one in hashes]
    return tagged_hash("troth/blob/1", len(blob).to_bytes(8, "big"), *chunks)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_digest_does_not_depend_on_what_is_digested_beside_it(lengths: list[int]) -> None:
    blobs = blobs_of(lengths)
    assert blob_digests(blobs) == [by_definition(blob) for blob in blobs] == [blob_digest(blob) for blob in blobs]


@pytest.mark.parametrize("lengths", LENGTHS)
def test_who_has_only_the_leaves_hashes_gets_the_same_digest(lengths: list[int]) -> None:
    """As an accelerator does, which hashes leaves and nothing else."""
    for blob in blobs_of(lengths):
        assert digest_of_leaves(len(blob), leaf_hashes(blob)) == blob_digest(blob)


def test_hashes_of_leaves_do_not_pass_for_the_bytes_of_a_leaf() -> None:
    """Sixteen hashes are as long as a short blob: its digest is another one, though a tree without tags would give the same."""
    blob = bytes(range(256)) * (2 * LEAF_BYTES // 256)
    posing = leaf_hashes(blob)
    assert chunk_hashes(posing) != chunk_hashes(blob)
    assert blob_digest(posing) != blob_digest(blob)
