"""Digests: SHA-256 with domain separation, and a tree over chunks for large blobs."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256 as _sha256
from itertools import islice
from typing import NewType, TypeVar

from troth.processes import in_turns

Digest = NewType("Digest", bytes)  # 32 bytes
A = TypeVar("A")
R = TypeVar("R")

CHUNK_BYTES = 1 << 20  # of a blob, that can be fetched and checked alone
LEAF_BYTES = 1 << 16  # of a chunk, hashed from end to end: an accelerator hashes thousands of leaves side by side
_HASH_BYTES = 32
_CORES = os.cpu_count() or 1
_FEW_CORES = 4  # on fewer, waking threads for work of a fraction of a millisecond is not worth while
_LENGTHS = [length.to_bytes(8, "big") for length in range(256)]  # nearly everything hashed is short


def tagged_hash(tag: str, *parts: bytes) -> Digest:
    """`SHA-256(tag, parts…)`, each preceded by its length: no two lists of parts give the same input."""
    framed = [_framed_tag(tag)]
    for part in parts:
        length = len(part)
        framed += (_LENGTHS[length] if length < 256 else length.to_bytes(8, "big"), part)
    return Digest(_sha256(b"".join(framed)).digest())


def smallest_hash(
    numbers: Iterable[int], before: tuple[bytes, ...], after: tuple[bytes, ...], tag: str
) -> tuple[Digest, int]:
    """The smallest `tagged_hash(tag, *before, number, *after)` for these numbers, in eight bytes each, and its number: what comes
    before the number is hashed once."""
    start = _sha256(_framed_tag(tag) + _framed(before))
    length, end = _LENGTHS[8], _framed(after)
    best, at = b"\xff" * 33, -1
    for number in numbers:
        tried = start.copy()
        tried.update(length + number.to_bytes(8, "big") + end)
        if (digest := tried.digest()) < best:
            best, at = digest, number
    return Digest(best), at


def _framed(parts: tuple[bytes, ...]) -> bytes:
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


@lru_cache(maxsize=1024)
def _framed_tag(tag: str) -> bytes:
    raw = tag.encode()
    return len(raw).to_bytes(8, "big") + raw


def blob_digest(blob: bytes | memoryview) -> Digest:
    """Digest a blob: a tree of leaves and chunks, so that threads share the work."""
    if 0 < len(blob) <= LEAF_BYTES:
        return digest_of_chunks(len(blob), [_sha256(blob).digest()])
    return blob_digests([blob])[0]


def blob_digests(blobs: Sequence[bytes | memoryview]) -> list[Digest]:
    """Digests of several blobs."""
    return [digest_of_leaves(len(blob), hashes) for blob, hashes in zip(blobs, hashes_of_leaves(blobs), strict=True)]


def hashes_of_leaves(blobs: Sequence[bytes | memoryview]) -> list[bytes]:
    """Of several blobs the hashes of all leaves, one after the other; threads share the chunks of all of them."""
    cut = [_chunks(blob) for blob in blobs]
    hashes = _in_chunks(_leaves_of, [chunk for chunks in cut for chunk in chunks])
    return [b"".join(islice(hashes, len(chunks))) for chunks in cut]


def chunk_hashes(blob: bytes | memoryview) -> list[bytes]:
    """Hashes of a blob's chunks, of `CHUNK_BYTES` each but the last: with them each chunk can be checked alone."""
    return list(_in_chunks(chunk_hash, _chunks(blob)))


def chunk_hash(chunk: bytes | memoryview) -> bytes:
    """Hash of one chunk."""
    return hash_of_leaves(_leaves_of(chunk))


def _leaves_of(chunk: bytes | memoryview) -> bytes:
    """Hashes of a chunk's leaves, one after the other."""
    view = memoryview(chunk)
    return b"".join([_sha256(view[start : start + LEAF_BYTES]).digest() for start in range(0, len(view), LEAF_BYTES)])


def hash_of_leaves(hashes: bytes) -> bytes:
    """Hash of a chunk whose leaves have these hashes, one after the other. A chunk of one leaf has the leaf's own.

    How many there are follows from a blob's length, which its digest names."""
    return hashes if len(hashes) == _HASH_BYTES else tagged_hash("troth/chunk/1", hashes)


def digest_of_leaves(length: int, hashes: bytes) -> Digest:
    """Digest of a blob of this length whose leaves have these hashes, one after the other."""
    width = CHUNK_BYTES // LEAF_BYTES * _HASH_BYTES
    return digest_of_chunks(length, [hash_of_leaves(hashes[at : at + width]) for at in range(0, len(hashes), width)])


def digest_of_chunks(length: int, hashes: Sequence[bytes]) -> Digest:
    """Digest of a blob of this length whose chunks have these hashes."""
    return tagged_hash("troth/blob/1", length.to_bytes(8, "big"), *hashes)


def _chunks(blob: bytes | memoryview) -> list[memoryview]:
    view = memoryview(blob)
    return [view[start : start + CHUNK_BYTES] for start in range(0, len(view), CHUNK_BYTES)]


def _in_chunks(hashed: Callable[[memoryview], bytes], chunks: list[memoryview]) -> Iterator[bytes]:
    """Hashes of chunks, on threads where that is more work than waking them."""
    much = sum(map(len, chunks)) > CHUNK_BYTES
    return iter(in_turns(hashed, chunks, min(_CORES, len(chunks)) if much else 1))


def side_by_side(work: Callable[[A], R], questions: Sequence[A], most: int = 8) -> list[R]:
    """`[work(q) for q in questions]` on threads, for work that leaves the interpreter's lock to others: signatures, ciphers.

    At most `most` threads: where a piece takes less than a millisecond, waking one takes a good part of that."""
    return in_turns(work, questions, 1 if _CORES < _FEW_CORES else min(_CORES, len(questions), most))


# Merkle trees over tagged leaves (the shape of RFC 6962): one root commits to many parts, a short path opens one.


def leaf_hash(index: int, length: int, dtype: str, blob: Digest) -> Digest:
    """Bind a part's index, its count and kind of numbers, and its bytes (SPEC C1).

    Without the index a contributor could open one part instead of another; without length and dtype, the same
    bytes could be read as other numbers.
    """
    return tagged_hash("troth/leaf/1", index.to_bytes(4, "big"), length.to_bytes(8, "big"), dtype.encode(), blob)


def node_hash(left: Digest, right: Digest) -> Digest:
    return tagged_hash("troth/node/1", left, right)


NodeHash = Callable[[Digest, Digest], Digest]


def merkle_tree(leaves: Sequence[Digest], node: NodeHash = node_hash) -> tuple[Digest, list[tuple[Digest, ...]]]:
    """The root, and for every leaf its path: the siblings from the bottom up. `node`: `node_hash`, perhaps remembered."""
    if not leaves:
        raise ValueError("a tree needs at least one leaf")
    if len(leaves) == 1:
        return leaves[0], [()]
    split = _split(len(leaves))
    left, left_paths = merkle_tree(leaves[:split], node)
    right, right_paths = merkle_tree(leaves[split:], node)
    return node(left, right), [*((*path, right) for path in left_paths), *((*path, left) for path in right_paths)]


def root_from_path(
    leaf: Digest, index: int, count: int, path: Sequence[Digest], node: NodeHash = node_hash
) -> Digest | None:
    """The root that this leaf and path lead to, or None if the path has the wrong length for the index."""
    if not 0 <= index < count:
        return None
    turns = _turns(index, count)
    if len(path) != len(turns):
        return None
    here = leaf
    for is_left, sibling in zip(turns, path, strict=True):
        here = node(here, sibling) if is_left else node(sibling, here)
    return here


@lru_cache(maxsize=1 << 14)  # the parts of all contributors are checked along the same few ways, step after step
def _turns(index: int, count: int) -> tuple[bool, ...]:
    """The way from a leaf to the root, from the bottom up: whether the node there is a left one."""
    turns = []
    while count > 1:
        split = _split(count)
        turns.append(index < split)
        index, count = (index, split) if index < split else (index - split, count - split)
    return tuple(reversed(turns))


def _split(count: int) -> int:
    """The largest power of two below `count`."""
    return int(1 << ((count - 1).bit_length() - 1))
