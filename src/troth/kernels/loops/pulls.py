"""Loops of jurors: distances from a centre and the sum of clipped pulls, as trees over all coordinates that are never in memory.

`tree_sum` adds the second half of D terms to the first until one is left. Its place i after L halvings is a tree over 2^L terms
at fixed distances, so a strip of places is built from 2^L strips of terms: neighbours are added up as soon as both are there.
"""

import numpy as np
from numpy.typing import NDArray

from troth.kernels.loops.jit import exact, numbers_at

# R rows, D coordinates, C coordinates of a strip, T terms of a place, L levels


@exact
def distance_trees(
    addresses_R: NDArray[np.uintp],
    center: int,
    size: int,
    starts_T: NDArray[np.int64],
    counts_T: NDArray[np.int64],
    first: int,
    sums_RC: NDArray[np.float64],
) -> None:
    """Places `first` and on, as many as `sums_RC` is wide, of the trees of `(x − v)²`."""
    center_D = numbers_at(center, size)
    stack_LC = np.empty((65, sums_RC.shape[1]))
    for r in range(len(addresses_R)):
        row_D = numbers_at(addresses_R[r], size)
        depth, fours = 0, len(starts_T) // 4
        for t in range(4 * fours, len(starts_T)):  # one or two
            _add_squares(row_D, center_D, starts_T[t] + first, counts_T[t] - first, stack_LC[depth])
            depth = _merge(stack_LC, depth, t)
        for four in range(fours):
            _four_squares(row_D, center_D, starts_T[4 * four :], counts_T[4 * four :], first, stack_LC[depth])
            depth = _merge(stack_LC, depth, four)
        _copy(stack_LC[0], sums_RC[r])


@exact
def _add_squares(
    row_D: NDArray[np.float32], center_D: NDArray[np.float32], place: int, count: int, terms_C: NDArray[np.float64]
) -> None:
    """One term of each place; 0 where there is none: squares are not negative, and adding 0 changes none."""
    count = _within(count, len(terms_C))
    row_C, center_C = row_D[place : place + count], center_D[place : place + count]
    for c in range(len(row_C)):
        away = np.float64(row_C[c]) - np.float64(center_C[c])
        terms_C[c] = away * away
    terms_C[count:] = 0.0


@exact
def _four_squares(
    row_D: NDArray[np.float32],
    center_D: NDArray[np.float32],
    starts_T: NDArray[np.int64],
    counts_T: NDArray[np.int64],
    first: int,
    terms_C: NDArray[np.float64],
) -> None:
    """Four neighbouring terms of each place, added as the tree adds them, without a way through memory in between."""
    count = len(terms_C)
    for t in range(4):
        count = _within(counts_T[t] - first, count)
    p0, p1, p2, p3 = starts_T[0] + first, starts_T[1] + first, starts_T[2] + first, starts_T[3] + first
    row0, row1, row2, row3 = (
        row_D[p0 : p0 + count],
        row_D[p1 : p1 + count],
        row_D[p2 : p2 + count],
        row_D[p3 : p3 + count],
    )
    at0, at1, at2, at3 = (
        center_D[p0 : p0 + count],
        center_D[p1 : p1 + count],
        center_D[p2 : p2 + count],
        center_D[p3 : p3 + count],
    )
    for c in range(len(row0)):
        away0 = np.float64(row0[c]) - np.float64(at0[c])
        away1 = np.float64(row1[c]) - np.float64(at1[c])
        away2 = np.float64(row2[c]) - np.float64(at2[c])
        away3 = np.float64(row3[c]) - np.float64(at3[c])
        terms_C[c] = (away0 * away0 + away1 * away1) + (away2 * away2 + away3 * away3)
    for c in range(count, len(terms_C)):  # where a term is missing
        low = _square(row_D, center_D, p0 + c, counts_T[0] - first > c) + _square(
            row_D, center_D, p1 + c, counts_T[1] - first > c
        )
        high = _square(row_D, center_D, p2 + c, counts_T[2] - first > c) + _square(
            row_D, center_D, p3 + c, counts_T[3] - first > c
        )
        terms_C[c] = low + high


@exact
def _square(row_D: NDArray[np.float32], center_D: NDArray[np.float32], place: int, there: bool) -> float:
    away = np.float64(row_D[place]) - np.float64(center_D[place]) if there else 0.0
    return away * away


@exact
def residual_tree(
    addresses_R: NDArray[np.uintp],
    scales_R: NDArray[np.float64],
    center: int,
    size: int,
    starts_T: NDArray[np.int64],
    counts_T: NDArray[np.int64],
    first: int,
    sums_C: NDArray[np.float64],
) -> None:
    """Places `first` and on, as many as `sums_C` is long, of the tree of `(Σ_i (x_i − v)·scale_i)²`."""
    center_D = numbers_at(center, size)
    stack_LC, pulls, wide = np.empty((65, len(sums_C))), np.empty(len(sums_C)), np.empty(len(sums_C))
    depth = 0
    for t in range(len(starts_T)):
        terms_C = stack_LC[depth]
        place, count = starts_T[t] + first, _within(counts_T[t] - first, len(terms_C))
        center_C, pull_C, wide_C = center_D[place : place + count], pulls[:count], wide[:count]
        for c in range(len(center_C)):
            wide_C[c] = center_C[c]
            pull_C[c] = 0.0
        done = 0
        while done + 4 <= len(addresses_R):  # four rows in one way through memory, added one after the other
            row0 = numbers_at(addresses_R[done], size)[place : place + count]
            row1 = numbers_at(addresses_R[done + 1], size)[place : place + count]
            row2 = numbers_at(addresses_R[done + 2], size)[place : place + count]
            row3 = numbers_at(addresses_R[done + 3], size)[place : place + count]
            scale0, scale1, scale2, scale3 = scales_R[done], scales_R[done + 1], scales_R[done + 2], scales_R[done + 3]
            for c in range(len(center_C)):
                pull = pull_C[c] + (np.float64(row0[c]) - wide_C[c]) * scale0
                pull += (np.float64(row1[c]) - wide_C[c]) * scale1
                pull += (np.float64(row2[c]) - wide_C[c]) * scale2
                pull_C[c] = pull + (np.float64(row3[c]) - wide_C[c]) * scale3
            done += 4
        for r in range(done, len(addresses_R)):
            row_C, scale = numbers_at(addresses_R[r], size)[place : place + count], scales_R[r]
            for c in range(len(center_C)):
                pull_C[c] += (np.float64(row_C[c]) - wide_C[c]) * scale
        for c in range(len(center_C)):
            terms_C[c] = pull_C[c] * pull_C[c]
        terms_C[count:] = 0.0
        depth = _merge(stack_LC, depth, t)
    _copy(stack_LC[0], sums_C)


@exact
def _copy(from_C: NDArray[np.float64], to_C: NDArray[np.float64]) -> None:
    """One by one: assigning a slice compiles the text of an error for slices of other lengths, which takes seconds."""
    for c in range(len(to_C)):
        to_C[c] = from_C[c]


@exact
def _within(count: int, most: int) -> int:
    return max(0, min(count, most))


@exact
def _merge(stack_LC: NDArray[np.float64], depth: int, t: int) -> int:
    """Add up neighbours after term t has come to lie on the stack, as often as it completes a pair; give the next free place."""
    done = t + 1
    while done % 2 == 0:
        low_C, high_C = stack_LC[depth - 1], stack_LC[depth]
        for c in range(len(low_C)):
            low_C[c] += high_C[c]
        depth -= 1
        done //= 2
    return depth + 1
