"""Loops over rows of float32 whose sums are right to a tolerance; rows are given by their addresses."""

import numpy as np
from numpy.typing import NDArray

from troth.kernels.loops.jit import numbers_at, regrouped

# R rows, D coordinates, C coordinates of a strip, B bytes of signs for each coordinate

_STRIP = 512  # coordinates whose squares are added up in the lanes of a vector unit, before sums are added to sums
_FOLDED = 1 << 15  # coordinates after which tables are folded: a hundred terms in a place, whose sum is off by 10⁻¹⁴
_BYTE = 256


@regrouped
def squares(addresses_R: NDArray[np.uintp], start: int, stop: int, squares_R: NDArray[np.float64]) -> None:
    """Add squared lengths over coordinates `start` to `stop`."""
    for r in range(len(addresses_R)):
        row_D = numbers_at(addresses_R[r], stop)
        for first in range(start, stop, _STRIP):
            row_C = row_D[first : min(first + _STRIP, stop)]
            total = 0.0
            for c in range(len(row_C)):
                total += np.float64(row_C[c]) * np.float64(row_C[c])
            squares_R[r] += total


@regrouped
def differences(
    addresses_R: NDArray[np.uintp],
    center: int,
    start: int,
    stop: int,
    signs_CB: NDArray[np.uint8],
    sums_R2: NDArray[np.float64],
    products_RBK: NDArray[np.float64],
) -> None:
    """Over coordinates `start` to `stop`, add squared distances from the centre and squared lengths, and products with signs.

    Coordinates with the same byte have the same signs in eight rows of signs: they are added up first, in a table that
    stays in the first cache, and 256 sums get their signs.
    """
    center_D = numbers_at(center, stop)
    tables_BV = np.empty((signs_CB.shape[1], _BYTE))
    away_C = np.empty(_STRIP)
    for fold in range(start, stop, _FOLDED):
        end = min(fold + _FOLDED, stop)
        for r in range(len(addresses_R)):
            row_D = numbers_at(addresses_R[r], stop)
            tables_BV[:] = 0.0
            for first in range(fold, end, _STRIP):
                last = min(first + _STRIP, end)
                row_C, center_C = row_D[first:last], center_D[first:last]
                distance, length = 0.0, 0.0
                for c in range(len(row_C)):
                    number = np.float64(row_C[c])
                    away = number - np.float64(center_C[c])
                    away_C[c] = away
                    distance += away * away
                    length += number * number
                sums_R2[r, 0] += distance
                sums_R2[r, 1] += length
                _scatter(away_C, signs_CB[first - start : last - start], tables_BV)
            _fold(tables_BV, products_RBK[r])


@regrouped
def _scatter(away_C: NDArray[np.float64], signs_CB: NDArray[np.uint8], tables_BV: NDArray[np.float64]) -> None:
    """Add every difference to the places of its bytes, two tables at a time. All is read before anything is written: tables
    might overlap, for all that the compiler knows, and it would read twice."""
    for b in range(0, len(tables_BV), 2):
        low_V, high_V = tables_BV[b], tables_BV[b + 1]
        for c in range(len(signs_CB)):
            away, low, high = away_C[c], np.int64(signs_CB[c, b]), np.int64(signs_CB[c, b + 1])
            low_sum, high_sum = low_V[low] + away, high_V[high] + away
            low_V[low] = low_sum
            high_V[high] = high_sum


@regrouped
def _fold(tables_BV: NDArray[np.float64], products_BK: NDArray[np.float64]) -> None:
    """Give the 256 sums of every table their signs, bit by bit from the highest down; a set bit is −1. Tables are used up."""
    for b in range(len(tables_BV)):
        table_V, half = tables_BV[b], _BYTE // 2
        for bit in range(7, -1, -1):
            low_V, high_V, product = table_V[:half], table_V[half : 2 * half], 0.0
            for v in range(half):
                product += low_V[v] - high_V[v]
                low_V[v] += high_V[v]
            products_BK[b, bit] += product
            half //= 2
