"""What lengths mean in a step: the clipping radius, how far an aggregate may be, how long an update (SPEC A6, V3, U3).

Functions of announced numbers, so the same at every honest peer. Single correctly rounded operations only: no two honest peers
may fall on different sides of a threshold.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from troth.crypto import PeerId
from troth.protocol.core.parts import Bounds
from troth.protocol.core.run import Parameters
from troth.protocol.wire.messages import ReportNumbers

TAU_STEPS = 32  # τ = auto looks back so far
TAU_CHANGE = 0.02
FAR_FACTOR = 4.0  # V3: an aggregate so many times farther away than gradients are long is looked into
LEAST_SHARE = 0.05  # … of an even part's: else a part in which nearly all gradients are zero would be
FIRST_UPDATES = 8  # whose length is limited by that step's gradients alone
APPLIED_STEPS = 64  # how far back the limit of later updates looks
UPDATE_FACTOR = 2.0
LEAST_GRADIENT = 1 / 16  # of the gradients' length: else a limit that was once too small would last for long


@dataclass(frozen=True)
class Scales:
    """What lengths mean in this step."""

    tau: float
    medians: tuple[
        float, ...
    ] = ()  # of the last steps, oldest first: the lower median of distances, for the whole vector
    applied: tuple[float, ...] = ()  # lengths of the last updates, oldest first
    updates: int = 0  # how often the model has moved

    @classmethod
    def first(cls, parameters: Parameters) -> "Scales":
        return cls(parameters.tau)

    def longest_update(self, length: float) -> float:
        """`C`: the length that an aggregate is cut down to; `length` is the lower median of this step's gradients (SPEC U3)."""
        if self.updates < FIRST_UPDATES:
            return UPDATE_FACTOR * max(length, self.tau)
        return UPDATE_FACTOR * max(lower_median(self.applied), length * LEAST_GRADIENT)

    def after(
        self, spread: float, applied: float | None, parameters: Parameters, *, outnumbered: bool = False
    ) -> "Scales":
        """The scales of the next step. `spread` is this step's `pooled_norm`, `applied` the length of its update, if there
        was one; `outnumbered`: liars may be half of those whose distances these are, so that τ must not follow them, neither now
        nor when more are back."""
        medians, tau = self.medians, self.tau
        if not outnumbered and spread > 0:
            medians = (*medians, spread)[-TAU_STEPS:]
            tau = self._next_tau(medians, parameters)
        if applied is None:
            return Scales(tau, medians, self.applied, self.updates)
        return Scales(tau, medians, (*self.applied, applied)[-APPLIED_STEPS:], self.updates + 1)

    def _next_tau(self, medians: Sequence[float], parameters: Parameters) -> float:
        """`c·median₃₂`, at most 2 % more or less than now, within the bounds that the run agreed on."""
        if parameters.tau_auto is None:
            return self.tau
        wanted = parameters.tau_auto * lower_median(medians)
        slow = min(max(wanted, self.tau * (1 - TAU_CHANGE)), self.tau * (1 + TAU_CHANGE))
        return min(max(slow, parameters.tau_least), parameters.tau_most)


def update_factor(norm: float, longest: float) -> float:
    """What the aggregate is multiplied by: `min(1, C/‖ĝ‖)` (SPEC U3)."""
    return 1.0 if norm <= longest else longest / norm


def whole_norm(norms: Iterable[float]) -> float:
    """The length of a vector from those of its parts."""
    return math.sqrt(math.fsum(norm * norm for norm in norms))


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


def far_parts(
    reports: Mapping[PeerId, ReportNumbers], length: float, taus: Sequence[float], bounds: Bounds
) -> set[int]:
    """V3: the parts whose aggregate is farther from the contributors than gradients are long.

    `N_p > 4·max(M_p, τ_p, 0.05·√(d/D)·M)` with lower medians over the contributors: `N_p` of `‖g_i[p] − ĝ[p]‖`, `M_p` of
    `‖g_i[p]‖`, and `M` of `‖g_i‖`, given as `length`.
    """
    middle = (len(reports) - 1) // 2
    far_P = np.sort(np.stack([report.norms_P for report in reports.values()]), axis=0)[middle]
    long_P = np.sort(np.stack([report.lengths_P for report in reports.values()]), axis=0)[middle]
    least_P = LEAST_SHARE * np.array(part_taus(length, bounds))
    return set(np.flatnonzero(far_P > FAR_FACTOR * np.maximum(np.maximum(long_P, taus), least_P)).tolist())
