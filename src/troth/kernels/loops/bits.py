"""Loops over the bits of float32 numbers, and sums of their squares in a fixed order.

Slices are taken before the innermost loops: an index that cannot be negative is what lets the compiler fill a vector unit.
"""

import numpy as np
from numpy.typing import NDArray

from troth.kernels.loops.jit import exact, numbers_at

# D coordinates, C coordinates of a strip

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_EXPONENT = np.uint32(0x7F800000)
_LEAST_NORMAL = np.uint32(0x00800000)
_ONE = np.uint32(1)
_STRIP = 1024  # lanes at a time: they stay in the first cache


@exact
def odd_numbers(address: int, start: int, stop: int) -> tuple[bool, bool]:
    """Whether there is a subnormal, and whether there is an infinity or a NaN."""
    bits_C = numbers_at(address, stop)[start:].view(np.uint32)
    least, largest = np.uint32(0xFFFFFFFF), np.uint32(0)
    for i in range(len(bits_C)):
        magnitude = np.uint32(bits_C[i] & _MAGNITUDE)
        least = min(least, np.uint32(magnitude - _ONE))  # a zero becomes the largest number of all
        largest = max(largest, magnitude)
    return bool(least < _LEAST_NORMAL - _ONE), bool(largest >= _EXPONENT)


@exact
def flush(address: int, start: int, stop: int) -> None:
    """Set to zero, in place, every number without a bit in its exponent: subnormals, and −0 with them."""
    bits_C = numbers_at(address, stop)[start:].view(np.uint32)
    for i in range(len(bits_C)):
        bits = bits_C[i]
        bits_C[i] = bits if bits & _EXPONENT else np.uint32(0)


@exact
def lane_sums(address: int, start: int, stop: int, lanes: NDArray[np.float64]) -> None:
    """Add up squares in lanes, each from its first number on; lanes beyond the numbers are left as they are."""
    numbers_D = numbers_at(address, stop)[start:]
    size, width = len(numbers_D), len(lanes)
    for strip in range(0, min(width, size), _STRIP):
        first_C = numbers_D[strip : min(strip + _STRIP, width, size)]
        lanes_C = lanes[strip : strip + _STRIP]
        for i in range(len(first_C)):
            lanes_C[i] = np.float64(first_C[i]) * np.float64(first_C[i])
        for first in range(width, size, width):
            next_C = numbers_D[first + strip : min(first + strip + _STRIP, first + width, size)]
            for i in range(len(next_C)):
                lanes_C[i] += np.float64(next_C[i]) * np.float64(next_C[i])


@exact
def tree(terms: NDArray[np.float64], width: int) -> float:
    """Sum of the first `width` terms, the second half added to the first until one is left; they are used up."""
    while width > 1:
        half = (width + 1) // 2
        low, high = terms[: width - half], terms[half:width]
        for i in range(len(low)):
            low[i] += high[i]
        width = half
    return float(terms[0])
