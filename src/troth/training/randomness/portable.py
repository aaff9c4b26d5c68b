"""Functions that initialisations use, with the same bits on every machine: float64 sums, products, quotients and roots alone.

Every step is one NumPy operation on float64, which IEEE 754 rounds correctly; libraries' own `log` and `erfinv` differ in
their last bits between machines. Precise to about 10⁻⁷ or better, which is enough for numbers that chance draws anyway.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

_LN2 = 0.6931471805599453


def sqrt(x: Numbers) -> Numbers:
    return np.asarray(np.sqrt(x))


def log(x: Numbers) -> Numbers:
    """`e·ln 2 + 2·artanh((m−1)/(m+1))` for x = m·2ᵉ with m from √½ to √2; negative numbers give NaN, zero −∞."""
    mantissa, exponent = np.frexp(np.where(x > 0, x, 1.0))
    low = mantissa < 0.7071067811865476
    mantissa, exponent = np.where(low, mantissa * 2, mantissa), np.where(low, exponent - 1, exponent)
    ratio = (mantissa - 1) / (mantissa + 1)
    series = _polynomial([1 / k for k in range(23, 0, -2)], ratio * ratio)
    result = exponent * _LN2 + 2 * ratio * series
    return np.asarray(np.where(x > 0, result, np.where(x == 0, -np.inf, np.nan)))


def exp(x: Numbers) -> Numbers:
    """`2ᵏ·eʳ` with |r| ≤ ½·ln 2, by its Taylor series."""
    power = np.rint(np.clip(x, -1000, 1000) / _LN2)
    rest = np.clip(x, -1000, 1000) - power * _LN2
    factorials = np.cumprod(np.arange(1.0, 16.0))
    series = _polynomial([*(1 / f for f in factorials[::-1]), 1.0], rest)
    return np.asarray(np.ldexp(series, power.astype(np.int64)))


def erfinv(x: Numbers) -> Numbers:
    """Giles' approximation (Approximating the erfinv function, 2010), with relative errors below 10⁻⁶ for every float32."""
    with np.errstate(all="ignore"):  # −1 and 1 have infinite values, and nothing beyond them any
        w = -log((1 - x) * (1 + x))
        near, far = _polynomial(_GILES_NEAR, w - 2.5), _polynomial(_GILES_FAR, np.sqrt(w) - 3)
        return np.asarray(np.where(np.abs(x) == 1, np.copysign(np.inf, x), np.where(w < 5, near, far) * x))


def qr(matrix: Numbers) -> tuple[Numbers, Numbers]:
    """Orthonormal columns and a triangle with positive diagonal, by Gram and Schmidt's modified method.

    Sums run in one fixed order (`accumulate`): reductions by vector instructions do not.
    """
    columns = matrix.astype(np.float64).copy()
    rows, count = columns.shape[0], min(columns.shape)
    basis, triangle = np.zeros((rows, count)), np.zeros((count, columns.shape[1]))
    for j in range(count):
        length = np.sqrt(_sum_rows(columns[:, j : j + 1] ** 2))[0]
        basis[:, j] = columns[:, j] / length if length > 0 else 0.0
        triangle[j, j:] = _sum_rows(basis[:, j : j + 1] * columns[:, j:])
        columns[:, j:] -= basis[:, j : j + 1] * triangle[j : j + 1, j:]
    return basis, triangle


def _sum_rows(terms: Numbers) -> Numbers:
    return np.asarray(np.add.accumulate(terms, axis=0)[-1])


def _polynomial(coefficients: Sequence[float], x: Numbers) -> Numbers:
    """Horner's scheme, the highest power first."""
    total = np.zeros_like(x)
    for coefficient in coefficients:
        total = total * x + coefficient
    return total


_GILES_NEAR = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_GILES_FAR = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)
