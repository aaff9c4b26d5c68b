"""Scales of a step: the clipping radius, and limits on distances of aggregates and lengths of updates (SPEC A6, V3, U3).

They are functions of announced numbers, so the same at every honest peer. Single correctly rounded operations only: no two
honest peers may fall on different sides of a threshold.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from troth.protocol.core.parts import Bounds
from troth.protocol.core.run import Parameters
from troth.protocol.wire.report_table import ReportTable

TAU_STEPS = 32  # steps that an automatic τ looks back (SPEC A6)
TAU_CHANGE = 0.02  # largest relative change of τ in a step
FAR_FACTOR = 4.0  # an aggregate this many times farther away than gradients are long is disputed (SPEC V3)
LEAST_SHARE = 0.05  # least length, relative to an even part's: else a part of nearly all zeros would be disputed
FIRST_UPDATES = 8  # updates whose length is limited by the same step's gradients alone (SPEC U3)
APPLIED_STEPS = 64  # updates that the limit of later ones looks back
UPDATE_FACTOR = 2.0  # limit of an update, as a multiple of the usual length
LEAST_GRADIENT = 1 / 16  # least limit, relative to the gradients: else a limit once too small would last for long


@dataclass(frozen=True)
class Scales:
    """Clipping radius of a step, and the history that the scales of the next one follow from."""

    tau: float
    medians: tuple[float, ...] = ()  # `pooled_norm` of the last steps, oldest first
    applied: tuple[float, ...] = ()  # lengths of the last updates, oldest first
    updates: int = 0  # updates of the model so far

    @classmethod
    def first(cls, parameters: Parameters) -> "Scales":
        return cls(parameters.tau)

    def longest_update(self, length: float) -> float:
        """`C`, the limit of an update's length; `length` is `M`, the lower median of this step's gradients (SPEC U3)."""
        if self.updates < FIRST_UPDATES:
            return UPDATE_FACTOR * max(length, self.tau)
        return UPDATE_FACTOR * max(lower_median(self.applied), length * LEAST_GRADIENT)

    def after(
        self, spread: float, applied: float | None, parameters: Parameters, *, outnumbered: bool = False
    ) -> "Scales":
        """Scales of the next step. `spread` is this step's `pooled_norm`, `applied` the length of its update, if any.

        `outnumbered`: liars may be half of the contributors, so τ must not rise with their distances, neither now nor when
        more members are back; falling only clips more (SPEC A6)."""
        medians, tau = self.medians, self.tau
        if outnumbered:
            spread = min(spread, lower_median(medians)) if medians and applied is not None else 0.0
        if spread > 0:
            medians = (*medians, spread)[-TAU_STEPS:]
            following = self._next_tau(medians, parameters)
            tau = min(tau, following) if outnumbered else following
        if applied is None:
            return Scales(tau, medians, self.applied, self.updates)
        return Scales(tau, medians, (*self.applied, applied)[-APPLIED_STEPS:], self.updates + 1)

    def _next_tau(self, medians: Sequence[float], parameters: Parameters) -> float:
        """`c·median₃₂`, at most 2 % more or less than now, within the run's bounds (SPEC A6)."""
        if parameters.tau_auto is None:
            return self.tau
        wanted = parameters.tau_auto * lower_median(medians)
        slow = min(max(wanted, self.tau * (1 - TAU_CHANGE)), self.tau * (1 + TAU_CHANGE))
        return min(max(slow, parameters.tau_least), parameters.tau_most)


def update_factor(norm: float, longest: float) -> float:
    """Factor of the aggregate: `min(1, C/‖ĝ‖)` (SPEC U3)."""
    return 1.0 if norm <= longest else longest / norm


def whole_norm(norms: Iterable[float]) -> float:
    """Length of a vector, from the lengths of its parts."""
    return math.sqrt(math.fsum(norm * norm for norm in norms))


def pooled_norm(table: ReportTable, bounds: Bounds) -> float:
    """Lower median, over peers and parts, of `norm/√(d/D)`: the distance of a whole vector (SPEC A6)."""
    norms_CP = table.norms_CP / np.sqrt(np.diff(bounds) / bounds[-1])
    middle = (norms_CP.size - 1) // 2
    # Zeros with and without a sign compare equal: on every machine the one without comes out.
    return float(np.partition(norms_CP, middle, axis=None)[middle]) + 0.0


def lower_median(numbers: Sequence[float]) -> float:
    """The ⌈k/2⌉-th smallest of k."""
    return sorted(numbers)[(len(numbers) - 1) // 2]


def part_taus(tau: float, bounds: Bounds) -> tuple[float, ...]:
    """Clipping radius of each part: `τ√(d/D)` for d of D numbers (SPEC A1)."""
    return tuple(tau * math.sqrt((stop - start) / bounds[-1]) for start, stop in pairwise(bounds))


def far_parts(table: ReportTable, length: float, taus: Sequence[float], bounds: Bounds) -> set[int]:
    """Parts whose aggregate is farther from the contributors than gradients are long (SPEC V3).

    `N_p > 4·max(M_p, τ_p, 0.05·√(d/D)·M)` with lower medians over the contributors: `N_p` of `‖g_i[p] − ĝ[p]‖`, `M_p` of
    `‖g_i[p]‖`, and `M` of `‖g_i‖`, given as `length`.
    """
    least_P = LEAST_SHARE * np.array(part_taus(length, bounds))
    far_P = FAR_FACTOR * np.maximum(np.maximum(table.median_lengths_P, taus), least_P)
    return set(np.flatnonzero(table.median_norms_P > far_P).tolist())
