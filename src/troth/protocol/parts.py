"""A gradient in parts, under one Merkle root."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from troth.aggregation import exact_norm, flush_subnormals
from troth.crypto import Digest, leaf_hash, merkle_tree, root_from_path
from troth.protocol.primitives import DTYPE, Primitives, all_finite, to_blobs

# D coordinates

Bounds = tuple[int, ...]  # P + 1 offsets: part p is [bounds[p], bounds[p + 1])


def part_bounds(size: int, parts: int) -> Bounds:
    """As even as possible: the first `size mod parts` parts are one longer (SPEC R5)."""
    base, longer = divmod(size, parts)
    lengths = [base + (p < longer) for p in range(parts)]
    return tuple(sum(lengths[:p]) for p in range(parts + 1))


@dataclass(frozen=True)
class Parcel:
    """One part on its way to its owner, with the path that ties it to the announced root."""

    blob: bytes
    path: tuple[Digest, ...]


@dataclass(frozen=True)
class CommittedParts:
    """A gradient cut into blobs, and the tree over them."""

    parcels: tuple[Parcel, ...]
    root: Digest

    @cached_property
    def lengths(self) -> list[float]:
        """Of every part; one that is not finite counts as zeros (SPEC C3)."""
        parts = [np.frombuffer(parcel.blob, "<f4") for parcel in self.parcels]
        return [exact_norm(part) if all_finite(part) else 0.0 for part in parts]


def commit_parts(gradient_D: Tensor, bounds: Bounds, tools: Primitives) -> CommittedParts:
    """Cut and hash a gradient (SPEC C1)."""
    blobs = to_blobs(gradient_D, bounds)
    root, paths = merkle_tree([_leaf(p, blob, tools) for p, blob in enumerate(blobs)])
    return CommittedParts(tuple(Parcel(blob, path) for blob, path in zip(blobs, paths, strict=True)), root)


def rows_of(parcels: Sequence[Parcel]) -> Tensor:
    """The numbers of parts, for owners and jurors; subnormals count as zero, and so does a part that is not finite (SPEC C3)."""
    rows_PD = np.stack([np.frombuffer(parcel.blob, "<f4") for parcel in parcels])
    rows_PD[[not all_finite(row_D) for row_D in rows_PD]] = 0
    return flush_subnormals(torch.from_numpy(rows_PD))


def opens(parcel: Parcel, part: int, bounds: Sequence[int], root: Digest, tools: Primitives) -> bool:
    """Whether the parcel is what the root commits to there; its length is checked before it is hashed (SPEC C3)."""
    if len(parcel.blob) != 4 * (bounds[part + 1] - bounds[part]) or len(parcel.path) > 32:
        return False
    return root_from_path(_leaf(part, parcel.blob, tools), part, len(bounds) - 1, parcel.path) == root


def _leaf(part: int, blob: bytes, tools: Primitives) -> Digest:
    return leaf_hash(part, len(blob) // 4, DTYPE, tools.digest(blob))
