"""Learning rates as tables: one number per step, the same on every machine, so that a run can name it by its digest.

Computed with exact decimal arithmetic: the `cos` of C libraries differs in its last bit.
"""

from collections.abc import Callable
from decimal import Decimal, localcontext

Schedule = tuple[float, ...]  # one rate per step; steps beyond the end keep the last one

_STAGES = 5  # of `restarts`
_PI = Decimal("3.14159265358979323846264338327950288")


def constant(rate: float, steps: int) -> Schedule:
    """The same rate at every step."""
    return (rate,) * steps


def cosine(rate: float, steps: int) -> Schedule:
    """Rates from `rate` down to nearly 0 along half a cosine: `rate·(1 + cos(π·t/steps))/2`."""
    with localcontext(prec=34):
        return tuple(float(Decimal(rate) * (1 + _cos_pi(t, steps)) / 2) for t in range(steps))


def linear(rate: float, steps: int) -> Schedule:
    """Rates from `rate` down to nearly 0 along a line: `rate·(1 − t/steps)`."""
    return tuple(rate * ((steps - t) / steps) for t in range(steps))


def step(rate: float, steps: int) -> Schedule:
    """The same rate for three quarters of the steps, and a tenth of it from there on."""
    return tuple(rate if 4 * t < 3 * steps else rate / 10 for t in range(steps))


def restarts(rate: float, steps: int) -> Schedule:
    """Five stages, each twice as long as the one before, at half its rate: `rate·2⁻ᵏ`, `k = ⌊log₂(1 + 31·t/steps)⌋`.

    Restarted-BTARD-SGD (Gorbunov et al. 2022, strongly convex case): a stage halves the squared distance to the optimum,
    which takes twice as many steps at half the rate once noise dominates. The method keeps no momentum, so a restart from
    where the last stage ended is a change of rate and nothing else.
    """
    whole = (1 << _STAGES) - 1  # 1 + 2 + 4 + … : the steps, in lengths of the first stage
    return tuple(rate / (1 << (((steps + whole * t) // steps).bit_length() - 1)) for t in range(steps))


def warmed_up(table: Schedule, warmup: int) -> Schedule:
    """The first `warmup` rates scaled up along a line, so that the first step is `1/warmup` of the full one."""
    return tuple(rate * min(1.0, (t + 1) / warmup) if warmup else rate for t, rate in enumerate(table))


def rate_at(table: Schedule, step: int) -> float:
    return table[min(step, len(table) - 1)]


SCHEDULES: dict[str, Callable[[float, int], Schedule]] = {
    "constant": constant,
    "cosine": cosine,
    "linear": linear,
    "step": step,
    "restarts": restarts,
}


def _cos_pi(numerator: int, denominator: int) -> Decimal:
    """cos(π·numerator/denominator) by its Taylor series, for angles from 0 to π."""
    if 2 * numerator > denominator:
        return -_cos_pi(denominator - numerator, denominator)  # below a quarter turn the series converges fast
    squared = (_PI * numerator / denominator) ** 2
    term = total = Decimal(1)
    for k in range(1, 16):
        term = -term * squared / ((2 * k - 1) * (2 * k))
        total += term
    return total
