"""Digests: SHA-256 with domain separation, and a tree over chunks for large blobs."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from hashlib import sha256 as _sha256
from itertools import chain, islice
from typing import NewType

Digest = NewType("Digest", bytes)  # 32 bytes

CHUNK_BYTES = 1 << 18
_GROUP_BYTES = 1 << 20  # that a thread takes at once, if there is enough for all
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
        return _blob_digest(len(blob), [_sha256(blob).digest()])
    return blob_digests([blob])[0]


def blob_digests(blobs: Sequence[bytes | memoryview]) -> list[Digest]:
    """Digests of several blobs; threads share the chunks of all of them."""
    return begin_digests(blobs)()


def begin_digests(blobs: Sequence[bytes | memoryview]) -> Callable[[], list[Digest]]:
    """Let threads begin with digests; the call returned waits for them."""
    views = [memoryview(blob) for blob in blobs]
    hashes = _hashes([v[start : start + CHUNK_BYTES] for v in views for start in range(0, len(v), CHUNK_BYTES)])
    return lambda: [_blob_digest(len(v), list(islice(hashes, -(-len(v) // CHUNK_BYTES)))) for v in views]


def _blob_digest(length: int, leaves: list[bytes]) -> Digest:
    return tagged_hash("troth/blob/1", length.to_bytes(8, "big"), *leaves)


def _hashes(chunks: list[memoryview]) -> Iterator[bytes]:
    cores = os.cpu_count() or 1
    total = sum(map(len, chunks))
    if total <= CHUNK_BYTES or cores == 1:  # less work than waking threads
        return iter(_chunk_hashes(chunks))
    some = max(1, min(_GROUP_BYTES, total // cores) // CHUNK_BYTES)
    groups = [chunks[first : first + some] for first in range(0, len(chunks), some)]
    return chain.from_iterable(_threads(os.getpid()).map(_chunk_hashes, groups))


def _chunk_hashes(chunks: list[memoryview]) -> list[bytes]:
    return [_sha256(chunk).digest() for chunk in chunks]  # releases the interpreter's lock


@lru_cache(maxsize=1)
def _threads(_process: int) -> ThreadPoolExecutor:
    """One pool for the process: a fork has threads of its own."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="hashing")
