"""Merkle trees over tagged leaves (the shape of RFC 6962): one root commits to many parts, a short path opens one."""

from collections.abc import Sequence

from troth.crypto.hashing import Digest, tagged_hash


def leaf_hash(index: int, length: int, dtype: str, blob: Digest) -> Digest:
    """Bind a part's index, its count and kind of numbers, and its bytes (SPEC C1).

    Without the index a contributor could open one part instead of another; without length and dtype, the same
    bytes could be read as other numbers.
    """
    return tagged_hash("troth/leaf/1", index.to_bytes(4, "big"), length.to_bytes(8, "big"), dtype.encode(), blob)


def merkle_tree(leaves: Sequence[Digest]) -> tuple[Digest, list[tuple[Digest, ...]]]:
    """The root, and for every leaf its path: the siblings from the bottom up."""
    if not leaves:
        raise ValueError("a tree needs at least one leaf")
    if len(leaves) == 1:
        return leaves[0], [()]
    split = _split(len(leaves))
    left, left_paths = merkle_tree(leaves[:split])
    right, right_paths = merkle_tree(leaves[split:])
    return _node(left, right), [*((*path, right) for path in left_paths), *((*path, left) for path in right_paths)]


def root_from_path(leaf: Digest, index: int, count: int, path: Sequence[Digest]) -> Digest | None:
    """The root that this leaf and path lead to, or None if the path has the wrong length for the index."""
    if not 0 <= index < count:
        return None
    if count == 1:
        return leaf if not path else None
    if not path:
        return None
    split, sibling = _split(count), path[-1]
    if index < split:
        below = root_from_path(leaf, index, split, path[:-1])
        return None if below is None else _node(below, sibling)
    below = root_from_path(leaf, index - split, count - split, path[:-1])
    return None if below is None else _node(sibling, below)


def _node(left: Digest, right: Digest) -> Digest:
    return tagged_hash("troth/node/1", left, right)


def _split(count: int) -> int:
    """The largest power of two below `count`."""
    return int(1 << ((count - 1).bit_length() - 1))
