"""Iterations to accuracy ε, read off a run's curve. Every step is evaluated, so a curve has one point a step, from step 0 on.

| measure | what must be at most ε | of which theorems |
| --- | --- | --- |
| squared-gradient | √ of the mean of ‖∇f(x)‖² over the points up to here | non-convex |
| mean-gap | mean of f(x) − f* over the points up to here, which bounds that of the mean point | convex |
| gap | f(x) − f* at this point | strongly convex |
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Curve = Sequence[Mapping[str, float | None]]  # points with `step` and metrics; None is not finite
Series = NDArray[np.float64]


def _squared_gradient(curve: Curve) -> Series:
    squares: Series = np.sqrt(_running_mean(_metric(curve, "gradient") ** 2))
    return squares


def _mean_gap(curve: Curve) -> Series:
    return _running_mean(_metric(curve, "loss"))


def _gap(curve: Curve) -> Series:
    return _metric(curve, "loss")


MEASURES: dict[str, Callable[[Curve], Series]] = {
    "squared-gradient": _squared_gradient,
    "mean-gap": _mean_gap,
    "gap": _gap,
}


def steps_to(curve: Curve, measure: str, epsilon: float) -> int | None:
    """The first evaluated step from which the measure stays at or below ε to the end of the run; None where it ends above."""
    above = ~(MEASURES[measure](curve) <= epsilon)
    if above[-1]:
        return None
    last = int(np.flatnonzero(above)[-1]) + 1 if above.any() else 0
    return int(curve[last]["step"] or 0)


def _metric(curve: Curve, name: str) -> Series:
    """The numbers of one metric; what is not finite counts as infinite."""
    return np.array([np.inf if (value := point[name]) is None else value for point in curve], dtype=np.float64)


def _running_mean(values: Series) -> Series:
    mean: Series = np.cumsum(values) / np.arange(1, len(values) + 1)
    return mean
