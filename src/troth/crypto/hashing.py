"""Digests: SHA-256 with domain separation, and a tree over chunks for large blobs."""

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from hashlib import sha256 as _sha256
from typing import NewType

Digest = NewType("Digest", bytes)  # 32 bytes

CHUNK_BYTES = 1 << 20
_MOST_THREADS = 8
_LENGTHS = [length.to_bytes(8, "big") for length in range(256)]  # nearly everything hashed is short


def tagged_hash(tag: str, *parts: bytes) -> Digest:
    """`SHA-256(tag, parts…)`, each preceded by its length: no two lists of parts give the same input."""
    framed = [_framed_tag(tag)]
    for part in parts:
        length = len(part)
        framed += (_LENGTHS[length] if length < 256 else length.to_bytes(8, "big"), part)
    return Digest(_sha256(b"".join(framed)).digest())


@lru_cache(maxsize=1024)
def _framed_tag(tag: str) -> bytes:
    raw = tag.encode()
    return len(raw).to_bytes(8, "big") + raw


def blob_digest(blob: bytes | memoryview) -> Digest:
    """Digest a blob: the hash of the hashes of its chunks, so that threads share the work."""
    if 0 < len(blob) <= CHUNK_BYTES:
        return tagged_hash("troth/blob/1", len(blob).to_bytes(8, "big"), _sha256(blob).digest())
    view = memoryview(blob)
    chunks = [view[start : start + CHUNK_BYTES] for start in range(0, len(view), CHUNK_BYTES)]
    with ThreadPoolExecutor(_MOST_THREADS) as pool:
        leaves = list(pool.map(_chunk_hash, chunks))
    return tagged_hash("troth/blob/1", len(view).to_bytes(8, "big"), *leaves)


def _chunk_hash(chunk: memoryview) -> bytes:
    return _sha256(chunk).digest()  # releases the interpreter's lock
