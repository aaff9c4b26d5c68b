"""The clipping radius and the norm cap: functions of announced numbers, so the same at every honest peer (SPEC A6, V3).

Single correctly rounded operations only: no two honest peers may fall on different sides of a threshold.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from troth.protocol.messages import ReportNumbers
from troth.protocol.parts import Bounds
from troth.protocol.run import Parameters

CAP_STEPS = 64  # the norm cap looks back so far, and there is none before
CAP_FACTOR = 4.0
CAP_GROWTH = 1.01
TAU_STEPS = 32  # τ = auto looks back so far
TAU_CHANGE = 0.02


@dataclass(frozen=True)
class Scales:
    """What lengths mean in this step."""

    tau: float
    cap: float | None = None
    medians: tuple[float, ...] = ()  # of the last steps, oldest first: the lower median of norms, for the whole vector

    @classmethod
    def first(cls, parameters: Parameters) -> "Scales":
        return cls(parameters.tau)

    def after(self, spread: float, parameters: Parameters) -> "Scales":
        """The scales of the next step; `spread` is this step's `pooled_norm`."""
        medians = (*self.medians, spread)[-CAP_STEPS:]
        tau = self._next_tau(medians, parameters)
        return Scales(tau, self._next_cap(medians, tau), medians)

    def _next_tau(self, medians: Sequence[float], parameters: Parameters) -> float:
        """`c·median₃₂`, at most 2 % more or less than now, within the bounds that the run agreed on."""
        if parameters.tau_auto is None:
            return self.tau
        wanted = parameters.tau_auto * lower_median(medians[-TAU_STEPS:])
        slow = min(max(wanted, self.tau * (1 - TAU_CHANGE)), self.tau * (1 + TAU_CHANGE))
        return min(max(slow, parameters.tau_least), parameters.tau_most)

    def _next_cap(self, medians: Sequence[float], tau: float) -> float | None:
        """`4·median₆₄`, growing by at most 1 % a step, never below 2τ."""
        if len(medians) < CAP_STEPS:
            return None
        wanted = CAP_FACTOR * lower_median(medians)
        slow = wanted if self.cap is None else min(wanted, self.cap * CAP_GROWTH)
        return max(slow, 2 * tau)


def pooled_norm(reports: Iterable[ReportNumbers], bounds: Bounds) -> float:
    """The lower median over peers and parts of `norm/√(d/D)`: what a whole vector would measure."""
    share_P = np.array([(stop - start) / bounds[-1] for start, stop in pairwise(bounds)])
    norms_CP = np.stack([report.norms_P for report in reports]) / np.sqrt(share_P)
    return lower_median(norms_CP.ravel().tolist())


def lower_median(numbers: Sequence[float]) -> float:
    """The ⌈k/2⌉-th smallest of k."""
    return sorted(numbers)[(len(numbers) - 1) // 2]


def part_taus(tau: float, bounds: Bounds) -> tuple[float, ...]:
    """The radius of each part: d of D numbers have `τ√(d/D)` (SPEC A1)."""
    return tuple(tau * math.sqrt((stop - start) / bounds[-1]) for start, stop in pairwise(bounds))


def far_parts(reports: Sequence[ReportNumbers], cap: float | None, bounds: Bounds) -> set[int]:
    """V3: the parts from whose aggregate at least half of the contributors are farther away than the norm cap."""
    if cap is None:
        return set()
    cap_P = np.array(part_taus(cap, bounds))
    far_P = (np.stack([report.norms_P for report in reports]) > cap_P).sum(axis=0)
    return {int(part) for part in np.flatnonzero(2 * far_P >= len(reports))}
