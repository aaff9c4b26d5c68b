"""A gradient in parts, under one Merkle root."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.clip.blocks import PLAIN, Code, Form
from troth.clip.exact import all_finite, flush_in_place, ordinary
from troth.crypto import Digest, Seed, derive, merkle_tree, root_from_path
from troth.protocol.wire.blob import SETTLES_BYTES, Blob
from troth.protocol.wire.primitives import UNSHARED, Primitives, part_norms

# D coordinates

Bounds = tuple[int, ...]  # P + 1 offsets: part p is [bounds[p], bounds[p + 1])


def part_bounds(size: int, parts: int, code: Code = PLAIN) -> Bounds:
    """Cut as evenly as possible, where blocks of the code begin: the first parts are one block longer (SPEC R5)."""
    base, longer = divmod(-(-size // code.grain), parts)
    starts = (p * base + min(p, longer) for p in range(parts + 1))
    return tuple(min(size, code.grain * start) for start in starts)


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


def commit_parts(
    gradient_D: Tensor, bounds: Bounds, tools: Primitives = UNSHARED, code: Code = PLAIN, seed: Seed | None = None
) -> CommittedParts:
    """Round, cut and hash a gradient (SPEC C1, C4). `seed`: that of the gradient, from which its rounding is drawn."""
    # The very tensor, wherever that can be: its pieces may be hashed already.
    if code is PLAIN:
        _, blobs = tools.cut(gradient_D, bounds)
        numbers_D = _as_read(gradient_D, bounds)
    else:
        assert seed is not None
        ordinary_D = _as_read(gradient_D, (0, bounds[-1]))
        numbers_D, blobs = tools.cut(ordinary_D, bounds, code.rows, rounding_key(code, seed))  # blocks hold no others
    leaves = [tools.leaf(p, b - a, blobs[p].digest, code.rows) for p, (a, b) in enumerate(pairwise(bounds))]
    root, paths = merkle_tree(leaves, tools.node)
    proven_parts = tuple(ProvenPart(blob, path) for blob, path in zip(blobs, paths, strict=True))
    return CommittedParts(proven_parts, root, bounds, numbers_D.detach())


def rounding_key(code: Code, seed: Seed) -> bytes:
    """What the rounding of the gradient with this seed is drawn from."""
    return b"" if code is PLAIN else derive(seed, "rounding")


def _as_read(numbers_D: Tensor, bounds: Sequence[int]) -> Tensor:
    """Numbers as owners read them, part by part; the tensor itself if they read the same."""
    if not ordinary(numbers_D):
        numbers_D = numbers_D.detach().clone()
        for start, stop in pairwise(bounds):
            _read(numbers_D[start:stop])
    return numbers_D


def rows_of(proven_parts: Sequence[ProvenPart], device: torch.device | str = "cpu", code: Code = PLAIN) -> Tensor:
    """Numbers of parts as owners and jurors read them (SPEC C3, C4), on this device."""
    blobs, form = [proven.blob for proven in proven_parts], code.rows
    here = torch.device(device).type == "cpu"
    settles, size = here and sum(map(len, blobs)) >= SETTLES_BYTES, form.count(len(blobs[0]))
    if here:
        rows_PD = torch.empty(len(blobs), size)
        for row, blob in enumerate(blobs):  # one by one: parts and rows together would be two gradients
            if settles:
                blob.settle(rows_PD.view(-1), row * size, form)
            else:
                blob.copy_to(rows_PD[row], form)
    else:
        rows_PD = torch.stack([_tensor_of(blob, form, device) for blob in blobs])
    if code is PLAIN and not ordinary(rows_PD.view(-1)):
        rows_PD = rows_PD.clone() if settles else rows_PD  # the parts stay as they were committed to
        for row_D in rows_PD:
            _read(row_D)
    return rows_PD


def _tensor_of(blob: Blob, form: Form, device: torch.device | str) -> Tensor:
    """Numbers of a part on a device; zeros where it is malformed (SPEC C4)."""
    numbers_D = blob.read_D(device, form)
    return torch.zeros(form.count(len(blob)), device=device) if numbers_D is None else numbers_D


def _read(numbers_D: Tensor) -> None:
    """Set to zero, in place, subnormals and a part that is not finite (SPEC C3)."""
    if all_finite(numbers_D):
        flush_in_place(numbers_D)
    else:
        numbers_D.zero_()


def opens(
    proven: ProvenPart,
    part: int,
    bounds: Sequence[int],
    root: Digest,
    tools: Primitives = UNSHARED,
    code: Code = PLAIN,
) -> bool:
    """Tell whether the root commits to this part; its length is checked before it is hashed (SPEC C3)."""
    size = bounds[part + 1] - bounds[part]
    if len(proven.blob) != code.rows.length(size) or len(proven.path) > 32:
        return False
    return opens_digest(proven.blob.digest, proven.path, part, bounds, root, tools, code)


def opens_digest(
    digest: Digest,
    path: Sequence[Digest],
    part: int,
    bounds: Sequence[int],
    root: Digest,
    tools: Primitives = UNSHARED,
    code: Code = PLAIN,
) -> bool:
    """Tell whether the root commits to a part with this digest."""
    leaf = tools.leaf(part, bounds[part + 1] - bounds[part], digest, code.rows)
    return root_from_path(leaf, part, len(bounds) - 1, path, tools.node) == root
