"""Merkle trees over tagged leaves (the shape of RFC 6962): one root commits to many parts, a short path opens one."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from troth.crypto.hashing import Digest, tagged_hash


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
