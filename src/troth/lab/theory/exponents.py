"""Exponents: the slope of a straight line through points on logarithmic axes, and how far seeds let it be off."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, nan

import numpy as np


@dataclass(frozen=True)
class Line:
    """`y ≈ factor·x^exponent`. `error` is one standard error of the exponent; nan where a point has a single seed."""

    exponent: float
    error: float
    factor: float


def fit_exponent(xs: Sequence[float], samples: Sequence[Sequence[float]]) -> Line | None:
    """Least squares through log of the mean over seeds; None with fewer than two points above 0.

    The exponent is a weighted sum `Σ wᵢ·log ȳᵢ` with `wᵢ = (log xᵢ − mean)/Σ(log xⱼ − mean)²`; points are independent, so its
    variance is `Σ wᵢ²·Var(log ȳᵢ)`, and `Var(log ȳᵢ) ≈ sᵢ²/(Sᵢ·ȳᵢ²)` with the seeds' standard deviation sᵢ. It holds chance
    only: whether the points lie on a line at all is for the eye.
    """
    kept = [(x, np.asarray(sample, float)) for x, sample in zip(xs, samples, strict=True) if np.mean(sample) > 0]
    if len({x for x, _ in kept}) < 2:
        return None
    log_x = np.log([x for x, _ in kept])
    log_y = np.log([sample.mean() for _, sample in kept])
    weights = (log_x - log_x.mean()) / ((log_x - log_x.mean()) ** 2).sum()
    variances = [s.var(ddof=1) / (len(s) * s.mean() ** 2) if len(s) > 1 else nan for _, s in kept]
    exponent = float(weights @ log_y)
    return Line(
        exponent=exponent,
        error=float(np.sqrt((weights**2 * np.array(variances)).sum())),
        factor=exp(float(log_y.mean() - exponent * log_x.mean())),
    )
