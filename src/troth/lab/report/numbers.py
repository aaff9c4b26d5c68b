"""Means, spreads and intervals over seeds."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# 97.5 % quantiles of Student's t by degrees of freedom. Between two entries the smaller one counts: its interval is the wider.
_T_975 = {
    1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706, 6: 2.4469, 7: 2.3646, 8: 2.3060, 9: 2.2622, 10: 2.2281,
    11: 2.2010, 12: 2.1788, 13: 2.1604, 14: 2.1448, 15: 2.1314, 16: 2.1199, 17: 2.1098, 18: 2.1009, 19: 2.0930, 20: 2.0860,
    21: 2.0796, 22: 2.0739, 23: 2.0687, 24: 2.0639, 25: 2.0595, 26: 2.0555, 27: 2.0518, 28: 2.0484, 29: 2.0452, 30: 2.0423,
    40: 2.0211, 60: 2.0003, 120: 1.9799,
}  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n − 1) of n numbers; None where there are too few."""

    mean: float | None
    sd: float | None
    n: int

    def scaled(self, factor: float) -> "Spread":
        return Spread(
            None if self.mean is None else self.mean * factor,
            None if self.sd is None else self.sd * abs(factor),
            self.n,
        )


def spread(values: Iterable[float | None]) -> Spread:
    """Of those that are numbers."""
    known = [value for value in values if value is not None]
    if not known:
        return Spread(None, None, 0)
    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return Spread(mean, None, 1)
    return Spread(mean, math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1)), len(known))


def mean(values: Iterable[float | None]) -> float | None:
    return spread(values).mean


def t_975(freedom: int) -> float:
    """97.5 % quantile of Student's t, so that mean ± t · standard error is a 95 % interval."""
    return _T_975[max(known for known in _T_975 if known <= freedom)]


@dataclass(frozen=True)
class Interval:
    """The mean of paired differences, with its standard error and its 95 % interval."""

    mean: float
    error: float
    low: float
    high: float
    n: int

    @property
    def holds_zero(self) -> bool:
        return self.low <= 0 <= self.high


def interval(differences: Sequence[float]) -> Interval | None:
    """None for fewer than two: one difference says nothing about its spread."""
    found = spread(differences)
    if found.mean is None or found.sd is None:
        return None
    error = found.sd / math.sqrt(found.n)
    reach = t_975(found.n - 1) * error
    return Interval(found.mean, error, found.mean - reach, found.mean + reach, found.n)
