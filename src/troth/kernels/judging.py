"""Distances of rows from a centre and the length of their clipped pulls, to the last bit as trees over all coordinates."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from troth.kernels.rows import Array, Rows, address
from troth.kernels.threads import spread

# R rows, D coordinates, T terms of a place in the tree

_STRIP = 1024  # places at a time
_PLACES = 1 << 13  # halving ends below so many


def pulls(rows: Sequence[Array] | Array, center_D: Array, tau: float) -> tuple[float, list[float]]:
    """`‖Σ_i (x_i − v)·τ/max(‖x_i − v‖, τ)‖` and all `‖x_i − v‖`, the rows in their order."""
    from troth.kernels.loops import bits
    from troth.kernels.loops import pulls as loops

    kept, center = Rows(rows), np.require(center_D, np.float32, ["C", "A"])
    assert len(center) == kept.size, "loops read as many numbers from the centre as from a row"
    width, starts_T, counts_T = tree_terms(kept.size)
    strips = -(-width // _STRIP)

    def distances(strip: int) -> NDArray[np.float64]:
        first = strip * _STRIP
        sums_RC = np.empty((len(kept), min(_STRIP, width - first)))
        loops.distance_trees(kept.addresses_R, address(center), kept.size, starts_T, counts_T, first, sums_RC)
        return sums_RC

    def residual(strip: int) -> NDArray[np.float64]:
        first = strip * _STRIP
        sums_C = np.empty(min(_STRIP, width - first))
        loops.residual_tree(kept.addresses_R, scales_R, address(center), kept.size, starts_T, counts_T, first, sums_C)
        return sums_C

    sums_RT = np.concatenate(spread(distances, strips), axis=1)
    norms = [float(np.sqrt(bits.tree(sums_T, width))) for sums_T in sums_RT]
    scales_R = np.array([tau / max(norm, tau) for norm in norms])
    return float(np.sqrt(bits.tree(np.concatenate(spread(residual, strips)), width))), norms


def tree_terms(size: int) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """How many places are left after halving `size` terms to fewer than `_PLACES`, and the terms of each.

    Place i is the tree over terms `starts[t] + i`, of which those with `i < counts[t]` exist: where a number of terms is odd, the
    last of the first half has no partner.
    """
    widths = [size]
    while widths[-1] >= _PLACES:
        widths.append((widths[-1] + 1) // 2)
    number_T = np.arange(1 << (len(widths) - 1))
    starts_T, counts_T = np.zeros_like(number_T), np.full_like(number_T, widths[-1])
    for level in range(len(widths) - 1, 0, -1):
        second_T = (number_T >> (level - 1)) & 1 == 1  # this term comes from the half that is added to the other
        present_T = widths[level - 1] - widths[level] - starts_T
        counts_T = np.where(second_T, np.minimum(counts_T, present_T), counts_T)
        starts_T = np.where(second_T, starts_T + widths[level], starts_T)
    return widths[-1], starts_T, counts_T
