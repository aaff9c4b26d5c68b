"""Arithmetic with the same bits on every machine: fixed order, single operations, and no subnormals.

Libraries add numbers in an order that depends on vector units and threads, and a long sum in few accumulators is off by
more than one might think: 10⁵ equal squares by 10⁻¹², which is more than V2 allows, and a liar chooses its numbers.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.clip import kernels, on_device
from troth.clip.on_device import tree_sum

# P peers (rows), D coordinates


Floats = NDArray[np.float64]

LANES = 1 << 14  # sums that grow side by side: they stay in the processor's cache
DEPTH = 16  # squares that one of them takes in, before all are added up
_FEW = 64  # so many numbers are added up at once, with all their digits
_CACHED = 1 << 16  # numbers whose bits are looked at together
_EXPONENT = 0x7F800000  # bits of a float32; none of them is set in zeros and subnormals
_MAGNITUDE = 0x7FFFFFFF
_LEAST_NORMAL = 0x00800000


def has_subnormals(numbers_D: NDArray[np.float32]) -> bool:
    """Look for subnormals by their bits: on a machine that flushes, a comparison of floats would not see them."""
    if kernels.takes(numbers_D):
        return kernels.odd_numbers(numbers_D)[0]
    bits_D = np.ascontiguousarray(numbers_D).view(np.uint32)
    for start in range(0, len(bits_D), _CACHED):
        less = bits_D[start : start + _CACHED] & _MAGNITUDE
        less -= 1  # a zero becomes the largest number of all
        if np.minimum.reduce(less) < _LEAST_NORMAL - 1:
            return True
    return False


def flush_subnormals(numbers: Tensor) -> Tensor:
    """Replace every float32 below 2⁻¹²⁶ by 0 (SPEC C3); without such, and in other formats, return the tensor as it is."""
    if numbers.dtype != torch.float32:
        return numbers
    if numbers.device.type == "cpu" and not has_subnormals(numbers.detach().contiguous().view(-1).numpy()):
        return numbers
    bits = numbers.contiguous().view(torch.int32)
    return torch.where((bits & _EXPONENT) == 0, 0, bits).view(torch.float32)


def ordinary(numbers_D: NDArray[np.float32] | Tensor) -> bool:
    """Tell whether the numbers mean the same on every machine: finite, and none subnormal (SPEC C3)."""
    if isinstance(numbers_D, Tensor):
        if numbers_D.device.type != "cpu":
            return not any(on_device.odd_numbers(numbers_D))
        numbers_D = numbers_D.detach().numpy()
    if kernels.takes(numbers_D):
        return not any(kernels.odd_numbers(numbers_D))
    return all_finite(numbers_D) and not has_subnormals(numbers_D)


def all_finite(numbers_D: NDArray[np.float32] | Tensor) -> bool:
    """Tell whether all numbers are finite. Nearly always they are, and then their sum shows it.

    einsum is the fastest sum that neither starts threads nor warns."""
    if isinstance(numbers_D, Tensor):
        if numbers_D.device.type != "cpu" or numbers_D.dtype != torch.float32:
            return bool(torch.isfinite(numbers_D).all())
        numbers_D = numbers_D.detach().numpy()
    if kernels.takes(numbers_D):
        return not kernels.odd_numbers(numbers_D)[1]
    return math.isfinite(np.einsum("d->", numbers_D)) or bool(np.isfinite(numbers_D).all())


def flush_in_place(numbers: NDArray[Any] | Tensor) -> None:
    """Replace every float32 below 2⁻¹²⁶ by 0, in place."""
    if isinstance(numbers, Tensor):
        if numbers.device.type != "cpu":
            on_device.flush(numbers)
            return
        numbers = numbers.numpy()
    if numbers.dtype == np.float32:
        if numbers.flags.carray and numbers.ndim == 1 and kernels.compiled(len(numbers)):
            kernels.flush(numbers)
            return
        bits = numbers.view(np.uint32)
        np.copyto(bits, 0, where=(bits & _EXPONENT) == 0)


def exact_norm(numbers_D: NDArray[np.float32] | Tensor) -> float:
    """The length of a vector of float32, the same bits on every machine.

    Squares are exact in float64. Few are summed at once; many in lanes side by side, the lanes as a tree, and the trees' sums at
    once.
    """
    if isinstance(numbers_D, Tensor):
        if numbers_D.device.type != "cpu" and len(numbers_D) > _FEW:
            return on_device.exact_norm(numbers_D, LANES, DEPTH)
        numbers_D = numbers_D.detach().cpu().numpy()
    if kernels.takes(numbers_D):
        norm = kernels.exact_norm(numbers_D, LANES, DEPTH)
        assert norm is not None
        return norm
    return norm_by_numpy(numbers_D)


def ordinary_norm(numbers_D: NDArray[np.float32] | Tensor) -> float | None:
    """`exact_norm`, or None unless the numbers are `ordinary`; of a large vector in one pass."""
    if isinstance(numbers_D, Tensor):
        return exact_norm(numbers_D) if ordinary(numbers_D) else None
    if kernels.takes(numbers_D):
        return kernels.exact_norm(numbers_D, LANES, DEPTH, only_ordinary=True)
    return exact_norm(numbers_D) if ordinary(numbers_D) else None


def norm_by_numpy(numbers: NDArray[np.float32]) -> float:
    """The readable reference of `exact_norm`."""
    if len(numbers) <= _FEW:
        return math.sqrt(math.fsum(np.multiply(numbers, numbers, dtype=np.float64).tolist()))
    lanes, squares, sums = np.empty(min(LANES, len(numbers))), np.empty(min(LANES, len(numbers))), []
    for start in range(0, len(numbers), LANES * DEPTH):
        stop = min(start + LANES * DEPTH, len(numbers))
        _square(numbers[start : min(start + LANES, stop)], lanes)
        for first in range(start + LANES, stop, LANES):
            block = numbers[first : min(first + LANES, stop)]
            lanes[: len(block)] += _square(block, squares)
        sums.append(float(tree_sum(lanes[: min(LANES, stop - start)])))
    return math.sqrt(math.fsum(sums))


def _square(numbers_D: NDArray[np.float32], out: Floats) -> Floats:
    squares = out[: len(numbers_D)]
    squares[:] = numbers_D
    squares *= squares
    return squares


# Checks of the input that all rules share.


class AggregationError(ValueError):
    """The vectors, or a rule's parameters, cannot be aggregated; the message names the row or the parameter."""


def check_vectors(vectors_PD: Tensor) -> None:
    """Refuse anything but a finite P×D matrix of float32 or float64, naming the first bad row.

    A single NaN would otherwise spread silently through sorts and distances into the aggregate.
    """
    check_shape(vectors_PD)
    largest_P = torch.linalg.vector_norm(vectors_PD, ord=float("inf"), dim=1)  # one read; NaN and inf survive it
    bad_rows = torch.nonzero(~torch.isfinite(largest_P)).flatten().tolist()
    if bad_rows:
        raise AggregationError(f"row {bad_rows[0]} is not finite (bad rows: {bad_rows}); leave it out and try again")


def check_shape(vectors_PD: object) -> None:
    """Check shape and number format, without reading data. A matrix of another library, or a list, gets no guess."""
    if not isinstance(vectors_PD, Tensor):
        given = f"{type(vectors_PD).__module__}.{type(vectors_PD).__name__}".removeprefix("builtins.")
        way = (
            "torch.from_numpy(…)"
            if given.startswith("numpy")
            else "torch.stack(…) of tensors, torch.tensor(…) of numbers"
        )
        raise AggregationError(f"expected a tensor with a row for each peer, got {given}: use {way}")
    if vectors_PD.ndim != 2 or 0 in vectors_PD.shape:
        raise AggregationError(f"expected a P×D matrix with at least one row and column, got {tuple(vectors_PD.shape)}")
    if vectors_PD.dtype not in (torch.float32, torch.float64):
        raise AggregationError(f"expected float32 or float64, got {vectors_PD.dtype}")


def check_byzantine(byzantine: int, peers: int, most: int, rule: str) -> None:
    """Refuse more liars than a rule tolerates among so many rows."""
    if not 0 <= byzantine <= most:
        raise AggregationError(
            f"{rule} over {peers} rows takes byzantine from 0 to {max(most, 0)}, got {byzantine}"
            if most >= 0
            else f"{rule} needs more than {peers} rows"
        )
