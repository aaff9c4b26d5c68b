"""Arithmetic with the same bits on every machine: fixed order, single operations, and no subnormals.

Libraries add numbers in an order that depends on vector units and threads, and a long sum in few accumulators is off by
more than one might think: 10⁵ equal squares by 10⁻¹², which is more than V2 allows. A liar chooses its numbers.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# P rows, D coordinates
Floats = NDArray[np.float64]

_BLOCK = 1 << 15  # numbers whose squares stay in the processor's cache
_EXPONENT = 0x7F800000  # bits of a float32; none of them is set in zeros and subnormals


def flush_subnormals(numbers: Tensor) -> Tensor:
    """A copy in which every float32 below 2⁻¹²⁶ is 0; other formats come back as they are.

    By integer masks: on a machine that flushes by itself a comparison would not even see them.
    """
    if numbers.dtype != torch.float32:
        return numbers
    bits = numbers.contiguous().view(torch.int32)
    return torch.where((bits & _EXPONENT) == 0, 0, bits).view(torch.float32)


def flush_in_place(numbers: NDArray[Any]) -> None:
    """The same for an array, where it is."""
    if numbers.dtype == np.float32:
        bits = numbers.view(np.uint32)
        np.copyto(bits, 0, where=(bits & _EXPONENT) == 0)


def tree_sum(terms: Floats) -> Floats:
    """Sums along the last axis, the second half added to the first until one is left; `terms` is used up.

    Off by at most log₂(D)·2⁻⁵³ of the sum of magnitudes, whatever the numbers are.
    """
    width = terms.shape[-1]
    while width > 1:
        half = (width + 1) // 2
        terms[..., : width - half] += terms[..., half:width]
        width = half
    sums: Floats = terms[..., 0]
    return sums


def exact_norm(numbers_D: NDArray[np.float32] | Tensor) -> float:
    """The length of a vector of float32: squares are exact in float64, blocks are summed as trees, and their sums at once."""
    numbers = numbers_D.detach().cpu().numpy() if isinstance(numbers_D, Tensor) else numbers_D
    squares, sums = np.empty(min(_BLOCK, len(numbers))), []
    for start in range(0, len(numbers), _BLOCK):
        block = numbers[start : start + _BLOCK]
        np.multiply(block, block, out=squares[: len(block)], dtype=np.float64)
        sums.append(float(tree_sum(squares[: len(block)])))
    return math.sqrt(math.fsum(sums))
