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
        depth = 0
        for t in range(len(starts_T)):
            _add_squares(row_D, center_D, starts_T[t] + first, counts_T[t] - first, stack_LC[depth])
            depth = _merge(stack_LC, depth, t)
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
    stack_LC, pulls = np.empty((65, len(sums_C))), np.empty(len(sums_C))
    depth = 0
    for t in range(len(starts_T)):
        terms_C = stack_LC[depth]
        place, count = starts_T[t] + first, _within(counts_T[t] - first, len(terms_C))
        center_C, pull_C = center_D[place : place + count], pulls[:count]
        pull_C[:] = 0.0
        for r in range(len(addresses_R)):
            row_C, scale = numbers_at(addresses_R[r], size)[place : place + count], scales_R[r]
            for c in range(len(center_C)):
                pull_C[c] += (np.float64(row_C[c]) - np.float64(center_C[c])) * scale
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
