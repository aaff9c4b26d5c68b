"""A gradient in parts, under one Merkle root."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.clip.exact import all_finite, flush_in_place, ordinary
from troth.crypto import Digest, merkle_tree, root_from_path
from troth.protocol.wire.blob import SETTLES_BYTES, Blob
from troth.protocol.wire.primitives import UNSHARED, Primitives, part_norms

# D coordinates

Bounds = tuple[int, ...]  # P + 1 offsets: part p is [bounds[p], bounds[p + 1])


def part_bounds(size: int, parts: int) -> Bounds:
    """Cut as evenly as possible: the first `size mod parts` parts are one longer (SPEC R5)."""
    base, longer = divmod(size, parts)
    lengths = [base + (p < longer) for p in range(parts)]
    return tuple(sum(lengths[:p]) for p in range(parts + 1))


@dataclass(frozen=True)
class ProvenPart:
    """One part, with the Merkle path to its contributor's announced root."""

    blob: Blob
    path: tuple[Digest, ...]


@dataclass(frozen=True)
class CommittedParts:
    """A gradient cut into parts, and the Merkle root over them."""

    proven_parts: tuple[ProvenPart, ...]
    root: Digest
    bounds: Bounds
    numbers_D: Tensor  # as owners read them (SPEC C3), where the gradient lies

    @cached_property
    def part_lengths(self) -> NDArray[np.float64]:
        return part_norms(self.numbers_D, self.bounds)


def commit_parts(gradient_D: Tensor, bounds: Bounds, tools: Primitives = UNSHARED) -> CommittedParts:
    """Cut and hash a gradient (SPEC C1)."""
    blobs = tools.cut(gradient_D, bounds)
    leaves = [tools.leaf(part, len(blob) // 4, blob.digest) for part, blob in enumerate(blobs)]
    root, paths = merkle_tree(leaves, tools.node)
    proven_parts = tuple(ProvenPart(blob, path) for blob, path in zip(blobs, paths, strict=True))
    numbers_D = gradient_D.detach()
    if not ordinary(numbers_D):
        numbers_D = numbers_D.clone()
        for start, stop in pairwise(bounds):
            _read(numbers_D[start:stop])
    return CommittedParts(proven_parts, root, bounds, numbers_D)


def rows_of(proven_parts: Sequence[ProvenPart], device: torch.device | str = "cpu") -> Tensor:
    """Numbers of parts as owners and jurors read them (SPEC C3), on this device."""
    settles = False
    if torch.device(device).type != "cpu":
        rows_PD = torch.stack([proven.blob.numbers_D(device) for proven in proven_parts])
    elif settles := sum(len(proven.blob) for proven in proven_parts) >= SETTLES_BYTES:
        rows_PD = torch.empty(len(proven_parts), len(proven_parts[0].blob) // 4)
        for row, proven in enumerate(proven_parts):  # one by one: parts and rows together would be two gradients
            proven.blob.settle(rows_PD.view(-1), row * rows_PD.shape[1])
    else:
        rows_PD = torch.from_numpy(np.stack([proven.blob.array_D for proven in proven_parts]))
    if not ordinary(rows_PD.view(-1)):
        rows_PD = rows_PD.clone() if settles else rows_PD  # the parts stay as they were committed to
        for row_D in rows_PD:
            _read(row_D)
    return rows_PD


def _read(numbers_D: Tensor) -> None:
    """Set to zero, in place, subnormals and a part that is not finite (SPEC C3)."""
    if all_finite(numbers_D):
        flush_in_place(numbers_D)
    else:
        numbers_D.zero_()


def opens(proven: ProvenPart, part: int, bounds: Sequence[int], root: Digest, tools: Primitives = UNSHARED) -> bool:
    """Tell whether the root commits to this part; its length is checked before it is hashed (SPEC C3)."""
    size = bounds[part + 1] - bounds[part]
    if len(proven.blob) != 4 * size or len(proven.path) > 32:
        return False
    leaf = tools.leaf(part, size, proven.blob.digest)
    return root_from_path(leaf, part, len(bounds) - 1, proven.path, tools.node) == root
