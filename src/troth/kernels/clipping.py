"""The two reads of CenteredClip's solver."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from troth.kernels.rows import Array, Rows, address
from troth.kernels.threads import spread

# R rows, D coordinates

_CHUNK = 1 << 13  # coordinates: 32 runs of products


def gram(rows: Sequence[Array] | Array, center_D: Array) -> NDArray[np.float64]:
    """`⟨x_i − r, x_j − r⟩` in float64, the upper triangle: runs one after the other in a chunk, chunks as a tree."""
    from troth.kernels.loops import clipping as loops

    kept, center = Rows(rows), _as_long(center_D, rows)
    padded = -(-len(kept) // loops.TILE) * loops.TILE

    def part(chunk: int) -> NDArray[np.float64]:
        gram_RR = np.zeros((padded, padded))
        start, stop = chunk * _CHUNK, min((chunk + 1) * _CHUNK, kept.size)
        loops.gram(kept.addresses_R, address(center), start, stop, gram_RR)
        return gram_RR

    parts = spread(part, -(-kept.size // _CHUNK))
    while len(parts) > 1:
        parts = [sum(parts[k + 1 : k + 2], parts[k]) for k in range(0, len(parts), 2)]
    return np.triu(parts[0][: len(kept), : len(kept)])


def combine(
    rows: Sequence[Array] | Array, coefficients_R: NDArray[np.float64], center_D: Array, rest: float
) -> tuple[NDArray[np.float32], float, float, float]:
    """`Σ c_i x_i + rest·r`, rounded to float32 and flushed; with the squares of what rounding lost, of the value and of r."""
    from troth.kernels.loops import clipping as loops

    kept, center = Rows(rows), _as_long(center_D, rows)
    value_D = np.empty(kept.size, np.float32)

    def part(chunk: int) -> tuple[float, float, float]:
        start, stop = chunk * _CHUNK, min((chunk + 1) * _CHUNK, kept.size)
        place, value = address(center), address(value_D)
        return loops.combine(kept.addresses_R, coefficients_R, rest, place, start, stop, value)

    lost, length, reach = np.add.reduce(spread(part, -(-kept.size // _CHUNK))).tolist()
    return value_D, lost, length, reach


def _as_long(center_D: Array, rows: Sequence[Array] | Array) -> Array:
    assert center_D.shape == rows[0].shape, "loops read as many numbers from the centre as from a row"
    return np.require(center_D, np.float32, ["C", "A"])
