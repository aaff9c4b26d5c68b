"""Loops of CenteredClip's solver: its two reads of the rows. Rows are given by their addresses, and lie anywhere."""

import numpy as np
from numpy.typing import NDArray

from troth.kernels.loops.bits import flush
from troth.kernels.loops.jit import numbers_at, regrouped

# R rows, D coordinates, C coordinates of a strip

_RUN = 256  # products that are added up in the lanes of a vector unit, before sums are added to sums
_STRIP = 2048
TILE = 4  # rows of a tile


@regrouped
def gram(addresses_R: NDArray[np.uintp], center: int, start: int, stop: int, gram_RR: NDArray[np.float64]) -> None:
    """Add `⟨x_i − r, x_j − r⟩` over coordinates `start` to `stop` on and above the diagonal."""
    center_D = numbers_at(center, stop)
    around_RC, wide_C = np.zeros((len(gram_RR), _RUN)), np.zeros(_RUN)
    for first in range(start, stop, _RUN):
        center_C = center_D[first : min(first + _RUN, stop)]
        if len(center_C) < _RUN:
            around_RC[:] = 0.0
        for c in range(len(center_C)):
            wide_C[c] = center_C[c]
        for r in range(len(addresses_R)):
            row_C, around_C = numbers_at(addresses_R[r], stop)[first : first + _RUN], around_RC[r]
            for c in range(len(row_C)):
                around_C[c] = np.float64(row_C[c]) - wide_C[c]
        for i in range(0, len(gram_RR), TILE):
            _corner(around_RC, i, gram_RR)
            for j in range(i + TILE, len(gram_RR), TILE):
                _tile(around_RC, i, j, gram_RR)


@regrouped
def _corner(around_RC: NDArray[np.float64], i: int, gram_RR: NDArray[np.float64]) -> None:
    """The ten products of four rows with each other."""
    a0, a1, a2, a3 = around_RC[i], around_RC[i + 1], around_RC[i + 2], around_RC[i + 3]
    s00 = s01 = s02 = s03 = s11 = s12 = s13 = s22 = s23 = s33 = 0.0
    for c in range(_RUN):
        x0, x1, x2, x3 = a0[c], a1[c], a2[c], a3[c]
        s00 += x0 * x0
        s01 += x0 * x1
        s02 += x0 * x2
        s03 += x0 * x3
        s11 += x1 * x1
        s12 += x1 * x2
        s13 += x1 * x3
        s22 += x2 * x2
        s23 += x2 * x3
        s33 += x3 * x3
    _add(gram_RR[i], i, s00, s01, s02, s03)
    _add(gram_RR[i + 1], i, 0.0, s11, s12, s13)
    _add(gram_RR[i + 2], i, 0.0, 0.0, s22, s23)
    _add(gram_RR[i + 3], i, 0.0, 0.0, 0.0, s33)


@regrouped
def _tile(around_RC: NDArray[np.float64], i: int, j: int, gram_RR: NDArray[np.float64]) -> None:
    """Sixteen products of rows side by side: every number that is read is used four times."""
    a0, a1, a2, a3 = around_RC[i], around_RC[i + 1], around_RC[i + 2], around_RC[i + 3]
    b0, b1, b2, b3 = around_RC[j], around_RC[j + 1], around_RC[j + 2], around_RC[j + 3]
    s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = 0.0
    s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = 0.0
    for c in range(_RUN):
        x0, x1, x2, x3 = a0[c], a1[c], a2[c], a3[c]
        y0, y1, y2, y3 = b0[c], b1[c], b2[c], b3[c]
        s00 += x0 * y0
        s01 += x0 * y1
        s02 += x0 * y2
        s03 += x0 * y3
        s10 += x1 * y0
        s11 += x1 * y1
        s12 += x1 * y2
        s13 += x1 * y3
        s20 += x2 * y0
        s21 += x2 * y1
        s22 += x2 * y2
        s23 += x2 * y3
        s30 += x3 * y0
        s31 += x3 * y1
        s32 += x3 * y2
        s33 += x3 * y3
    _add(gram_RR[i], j, s00, s01, s02, s03)
    _add(gram_RR[i + 1], j, s10, s11, s12, s13)
    _add(gram_RR[i + 2], j, s20, s21, s22, s23)
    _add(gram_RR[i + 3], j, s30, s31, s32, s33)


@regrouped
def _add(sums_R: NDArray[np.float64], j: int, s0: float, s1: float, s2: float, s3: float) -> None:
    sums_R[j] += s0
    sums_R[j + 1] += s1
    sums_R[j + 2] += s2
    sums_R[j + 3] += s3


@regrouped
def combine(
    addresses_R: NDArray[np.uintp],
    coefficients_R: NDArray[np.float64],
    rest: float,
    center: int,
    start: int,
    stop: int,
    value: int,
) -> tuple[float, float, float]:
    """Write `Σ c_i x_i + rest·r`, rounded and flushed; give the squares of what rounding lost, of the value and of r."""
    center_D, value_D = numbers_at(center, stop), numbers_at(value, stop)
    exact_C, lost, length, reach = np.empty(_STRIP), 0.0, 0.0, 0.0
    for first in range(start, stop, _STRIP):
        last = min(first + _STRIP, stop)
        center_C, value_C = center_D[first:last], value_D[first:last]
        for c in range(len(center_C)):
            exact_C[c] = rest * np.float64(center_C[c])
        for r in range(0, len(addresses_R), TILE):
            _add_rows(addresses_R[r : r + TILE], coefficients_R[r : r + TILE], first, last, exact_C)
        for c in range(len(center_C)):
            value_C[c] = np.float32(exact_C[c])
        flush(value, first, last)  # some machines flush subnormals in reading, so all do
        sums = _squares(exact_C, value_C, center_C)
        lost, length, reach = lost + sums[0], length + sums[1], reach + sums[2]
    return lost, length, reach


@regrouped
def _squares(
    exact_C: NDArray[np.float64], value_C: NDArray[np.float32], center_C: NDArray[np.float32]
) -> tuple[float, float, float]:
    lost, length, reach = 0.0, 0.0, 0.0
    for c in range(len(center_C)):
        rounded, center = np.float64(value_C[c]), np.float64(center_C[c])  # `float` would leave them float32
        lost += (exact_C[c] - rounded) * (exact_C[c] - rounded)
        length += rounded * rounded
        reach += center * center
    return lost, length, reach


@regrouped
def _add_rows(
    addresses_R: NDArray[np.uintp],
    coefficients_R: NDArray[np.float64],
    first: int,
    last: int,
    exact_C: NDArray[np.float64],
) -> None:
    """Add multiples of one to four rows, four in one go."""
    if len(addresses_R) == TILE:
        a, b = numbers_at(addresses_R[0], last)[first:], numbers_at(addresses_R[1], last)[first:]
        c, d = numbers_at(addresses_R[2], last)[first:], numbers_at(addresses_R[3], last)[first:]
        of_a, of_b, of_c, of_d = coefficients_R[0], coefficients_R[1], coefficients_R[2], coefficients_R[3]
        for i in range(last - first):
            near = of_a * np.float64(a[i]) + of_b * np.float64(b[i])
            far = of_c * np.float64(c[i]) + of_d * np.float64(d[i])
            exact_C[i] += near + far
    else:
        for r in range(len(addresses_R)):
            a, of_a = numbers_at(addresses_R[r], last)[first:], coefficients_R[r]
            for i in range(last - first):
                exact_C[i] += of_a * np.float64(a[i])
