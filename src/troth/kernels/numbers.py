"""Finite checks, flushing and the exact norm of one vector of float32."""

import math

import numpy as np

from troth.kernels.rows import Array, address
from troth.kernels.threads import spread

# D coordinates

_CHUNK = 1 << 18


def odd_numbers(numbers_D: Array) -> tuple[bool, bool]:
    """Whether there is a subnormal, and whether there is an infinity or a NaN; by their bits."""
    from troth.kernels.loops import bits

    ready_D = np.require(numbers_D, np.float32, ["C", "A"])
    place, size = address(ready_D), len(ready_D)

    def look(chunk: int) -> tuple[bool, bool]:
        return bits.odd_numbers(place, chunk * _CHUNK, min((chunk + 1) * _CHUNK, size))

    found = spread(look, -(-size // _CHUNK))
    return any(subnormal for subnormal, _ in found), any(endless for _, endless in found)


def flush(numbers_D: Array) -> None:
    """Replace every number below 2⁻¹²⁶ by 0, in place."""
    from troth.kernels.loops import bits

    assert numbers_D.dtype == np.float32, f"only float32 is flushed, not {numbers_D.dtype}"
    assert numbers_D.ndim == 1, "one vector"
    assert numbers_D.flags.carray, "written in place, so as it lies: contiguous, aligned and writable"
    place, size = address(numbers_D), len(numbers_D)
    spread(lambda chunk: bits.flush(place, chunk * _CHUNK, min((chunk + 1) * _CHUNK, size)), -(-size // _CHUNK))


def exact_norm(numbers_D: Array, lanes: int, depth: int, *, only_ordinary: bool = False) -> float | None:
    """Length of a vector: squares in lanes side by side, the lanes as a tree, the trees' sums at once.

    With `only_ordinary`, None if it holds a NaN, an infinity or a subnormal: seen while the numbers are in the cache.
    """
    from troth.kernels.loops import bits

    ready_D = np.require(numbers_D, np.float32, ["C", "A"])
    place, size, block = address(ready_D), len(ready_D), lanes * depth

    def add_up(chunk: int) -> float | None:
        start, stop = chunk * block, min((chunk + 1) * block, size)
        if only_ordinary and any(bits.odd_numbers(place, start, stop)):
            return None
        sums = np.empty(lanes)
        bits.lane_sums(place, start, stop, sums)
        return bits.tree(sums, min(lanes, stop - start))

    found = spread(add_up, -(-size // block))
    sums = [number for number in found if number is not None]
    return math.sqrt(math.fsum(sums)) if len(sums) == len(found) else None
