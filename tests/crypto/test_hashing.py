"""Digests of several blobs at once are those of each alone, whatever their lengths and whoever hashes them."""

import hashlib

import pytest

from troth.crypto import tagged_hash
from troth.crypto.hashing import CHUNK_BYTES, blob_digest, blob_digests

LENGTHS = [
    [1, 5, 1],
    [0, 3, 0],
    [CHUNK_BYTES, CHUNK_BYTES + 1, CHUNK_BYTES - 1],
    [2 * CHUNK_BYTES + 7, 0, 9, 3 * CHUNK_BYTES],
]


def blobs_of(lengths: list[int]) -> list[bytes]:
    return [bytes([number + 1]) * length for number, length in enumerate(lengths)]


def by_definition(blob: bytes) -> bytes:
    chunks = [blob[start : start + CHUNK_BYTES] for start in range(0, len(blob), CHUNK_BYTES)]
    return tagged_hash("troth/blob/1", len(blob).to_bytes(8, "big"), *(hashlib.sha256(one).digest() for one in chunks))


@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_digest_does_not_depend_on_what_is_digested_beside_it(lengths: list[int]) -> None:
    blobs = blobs_of(lengths)
    assert blob_digests(blobs) == [by_definition(blob) for blob in blobs] == [blob_digest(blob) for blob in blobs]
