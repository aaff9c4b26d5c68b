"""Covered aggregates: wrong ones whose traces colluders absorb in their reports, so that every public check passes.

The owner announces a shifted aggregate. The reports then no longer add up to nothing, so the colluding contributors add
what is missing to theirs: V2 holds, and the owner, who would have to name them, says nothing. The audit remains: it finds
a report that does not follow from its gradient, and with it the owner that let it pass (SPEC T7). It works because nobody
knows, when reports are made, whom the next step will audit: that is drawn with a second coin.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.clip.centered_clip import clip_residual
from troth.clip.fast import centered_clip
from troth.crypto import PeerId, Slot, projection_signs
from troth.protocol.core.channel import Said
from troth.protocol.core.roles import combine
from troth.protocol.core.roster import lower_median
from troth.protocol.wire.messages import Message, Phase, Report, ReportNumbers, Reveal
from troth.workshop.attacks.base import Choose, GradientAttack
from troth.workshop.attacks.roles import ShiftingOwner, audits_among_committed, contributors_of

# P contributors, K projections, D coordinates


@dataclass(frozen=True)
class CoverGap:
    """Sum that honest reports about one part lack to zero, and the colluders that absorb it."""

    slot: Slot
    part: int
    missing_K: NDArray[np.float64]
    helpers: Collection[PeerId]


class CoveringColluder(ShiftingOwner):
    """As owner, shifts its aggregate and works out the gap in the reports; as reporter, adds its share of it."""

    _coins_a: Mapping[PeerId, bytes]

    def _wrong(self, slot: Slot, part: int) -> Tensor:
        """Away from where the honest would go, by `shift` times the clipping radius."""
        rows_PD = torch.stack(self._rows[part])
        mean_D = rows_PD.mean(dim=0)
        length = float(torch.linalg.vector_norm(mean_D)) or 1.0
        shifted_D: Tensor = mean_D - mean_D / length * self._collusion.attack.shift * self._tau(rows_PD.shape[1])
        return shifted_D

    def _at_last(self, slot: Slot, message: Message) -> Choose | None:
        """Last, since colluding owners must have worked out first what is missing."""
        if not isinstance(message, Report) or not message.numbers:
            return None
        return lambda _: self._absorbing(slot, message)

    def _heard(self, slot: Slot, announced: Said) -> None:
        if slot.phase == Phase.REVEAL:
            self._coins_a = {p: a.message.coin for p, a in announced.items() if isinstance(a.message, Reveal)}
            for part in self._forged:
                self._missing_by_part(slot)[part] = self._missing(slot, part)

    def _missing_by_part(self, slot: Slot) -> dict[int, NDArray[np.float64]]:
        """Gaps that colluding owners told the others."""
        return self._collusion.shared(("missing", slot.step, slot.attempt), dict[int, NDArray[np.float64]])

    def _missing(self, slot: Slot, part: int) -> NDArray[np.float64]:
        """Sum of honest reports about this part, which should be zero: the owner holds everyone's rows."""
        parameters, bounds = self._run.parameters, self._bounds()
        key = combine("projections", slot.step, slot.attempt, self._coins_a)
        start, stop = bounds[part], bounds[part + 1]
        signs_KD = projection_signs(key, parameters.projections, start, stop).astype(np.float64)
        center_D = self._forged[part].numbers_D(form=self._code.centers).double().numpy()
        away_PD = torch.stack(self._rows[part]).double().numpy() - center_D
        norms_P = np.sqrt(np.square(away_PD).sum(axis=1))
        clipped_PD = away_PD * (self._tau(stop - start) / np.maximum(norms_P, self._tau(stop - start)))[:, None]
        return np.asarray(clipped_PD.sum(axis=0) @ signs_KD.T)

    def _absorbing(self, slot: Slot, honest: Report) -> Report:
        numbers = self._unpacked(honest)
        norms_P, projections_PK = numbers.norms_P.copy(), numbers.projections_PK.copy()
        helpers = self._colluders & set(self._contributors())
        if self._collusion.attack.foresight:
            helpers -= self._guessed_targets(slot)  # a helper that would be found tells the truth
        if self._me not in helpers:
            return honest
        for part, missing_K in self._missing_by_part(slot).items():
            gap = CoverGap(slot, part, missing_K, helpers)
            projections_PK[part] = self._share(gap, projections_PK[part])
            tau = self._tau(self._bounds()[part + 1] - self._bounds()[part])
            least = min(math.sqrt(float(np.square(projections_PK[part]).mean())) / 2.5 * 1.01, tau)
            norms_P[part] = self._told_norm(float(norms_P[part]), least)
        absorbing = ReportNumbers(numbers.lengths_P, norms_P, projections_PK)
        return msgspec.structs.replace(honest, numbers=absorbing.pack())

    def _unpacked(self, report: Report) -> ReportNumbers:
        numbers = ReportNumbers.unpack(report.numbers, len(self._bounds()) - 1, self._run.parameters.projections)
        assert isinstance(numbers, ReportNumbers)
        return numbers

    def _share(self, gap: CoverGap, right_K: NDArray[np.float64]) -> NDArray[np.float64]:
        """Projections that this helper reports in place of the right ones."""
        return right_K - gap.missing_K / len(gap.helpers)

    def _told_norm(self, right: float, least: float) -> float:
        """Distance to report, where its projections allow no shorter one than `least` (SPEC V2)."""
        return max(right, least)

    def _guessed_targets(self, slot: Slot) -> set[PeerId]:
        """Targets of honest auditors, if coins A, which are open, drew the next roles. With two coins they do not."""
        audits = audits_among_committed(self._run, slot, self._commits, self._coins_a)
        return {target for auditor, target in audits if auditor not in self._colluders}

    def _contributors(self) -> tuple[PeerId, ...]:
        return contributors_of(self._commits)


@dataclass(frozen=True)
class CoveredAggregate(GradientAttack, behaves=CoveringColluder, positive=("shift",)):
    """as owner, shift the aggregate by `shift` radii, while colluders absorb the traces in their reports"""

    shift: float = 0.3
    foresight: bool = False
    covers: ClassVar[bool] = True


# One covered step with any number in it: the harm is done before the audit comes.
#
# Liars that shift their aggregates a little are found after some steps. These do as much harm as they can in a few: the model
# is where they put it, whatever audits find later. With `scale=edge` they stay just within what everyone checks from
# announced numbers (SPEC V2, V3), so that no dispute stops the step.


# C contributors, D coordinates of one part

_FARTHEST = 4.0  # V3: usual lengths, or radii, that the aggregate may be away from the contributors
_LEAST_SHARE = 0.05  # V3: of the usual length of a whole gradient, for parts that are nearly zero
_ABSORBED = 2.5 / 1.6  # radii for each helper: V2 allows 2.5, and 16 signs seldom measure more than 1.6 times too much
_LARGEST = 3e38  # that float32 can hold


def largest_passing_shift(
    rows_CD: Tensor, towards_D: Tensor, *, tau: float, helpers: int, told_C: list[float], whole: float = 0.0
) -> float:
    """Farthest that an aggregate can be from the clipped centre in this direction with nobody disputing it.

    V3 compares lower medians over contributors: of their distances from the aggregate, where `helpers` of them claim to be
    near, with `max(M_p, τ_p, 0.05·√(d/D)·M)`. `told_C` are the lengths of the rows as announced, and `whole` is `√(d/D)·M`.
    V2 wants the pull of all rows to be absorbed by the helpers' reports, each of which has a longest length.
    """
    center_D = centered_clip(rows_CD, tau=tau).double()
    farthest = _FARTHEST * max(lower_median(told_C), tau, _LEAST_SHARE * whole)

    def passes(shift: float) -> bool:
        aggregate_D = center_D + shift * towards_D.double()
        away = torch.linalg.vector_norm(rows_CD.double() - aggregate_D, dim=1).sort().values.tolist()
        # At worst the nearest are the helpers.
        reported = [min(tau, distance) for distance in away[:helpers]] + away[helpers:]
        others = 1 - helpers / len(away)  # helpers report anything: what they have to absorb is the pull of the rest
        pull = others * float(torch.linalg.vector_norm(clip_residual(rows_CD, aggregate_D, tau=tau)))
        return lower_median(reported) <= farthest and pull <= _ABSORBED * tau * helpers

    least, most = 0.0, farthest
    while passes(most) and most < _LARGEST:
        least, most = most, 2 * most
    for _ in range(50):
        middle = (least + most) / 2
        least, most = (middle, most) if passes(middle) else (least, middle)
    return least


class OnceCoveringColluder(CoveringColluder):
    """As owner, puts an aggregate of the attack's length into its part, against the mean of its rows."""

    def _contributors(self) -> tuple[PeerId, ...]:
        """Contributors of this attempt: a helper that is out absorbs nothing."""
        return tuple(peer for peer in super()._contributors() if peer in self._members)

    def _wrong(self, slot: Slot, part: int) -> Tensor:
        rows_CD = torch.stack(self._rows[part])
        mean_D = rows_CD.double().mean(dim=0)
        towards_D = -mean_D / (float(torch.linalg.vector_norm(mean_D)) or 1.0)
        length = self._collusion.attack.length
        if length is not None:
            forged_D: Tensor = (length * towards_D).float()
            return forged_D
        tau, helpers = self._tau(rows_CD.shape[1]), len(self._colluders & set(self._contributors()))
        told_C = torch.linalg.vector_norm(rows_CD, dim=1, dtype=torch.float64).tolist()
        shift = largest_passing_shift(rows_CD, towards_D, tau=tau, helpers=helpers, told_C=told_C)
        return (centered_clip(rows_CD, tau=tau).double() + 0.999 * shift * towards_D).float()

    def _at_last(self, slot: Slot, message: Message) -> Choose | None:
        if isinstance(message, Report) and message.numbers:
            self._right(slot)[self._me] = self._unpacked(message).projections_PK
        return super()._at_last(slot, message)

    def _right(self, slot: Slot) -> dict[PeerId, NDArray[np.float64]]:
        """Projections that each colluder would report if it did not lie."""
        return self._collusion.shared(("right", slot.step, slot.attempt), dict[PeerId, NDArray[np.float64]])

    def _share(self, gap: CoverGap, right_K: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same for all helpers, so that none is longer than it must be (SPEC V2)."""
        right = self._right(gap.slot)
        ours_K = np.sum([right[peer][gap.part] for peer in sorted(right.keys() & set(gap.helpers))], axis=0)
        return np.asarray((ours_K - gap.missing_K) / len(gap.helpers))

    def _told_norm(self, right: float, least: float) -> float:
        """As near as its projections allow: liars that claim to be near pull the median distance down (SPEC V3)."""
        return min(right, least)


@dataclass(frozen=True)
class CoveredOnce(GradientAttack, behaves=OnceCoveringColluder):
    """as owner, announce an aggregate of length `scale`, or scale=edge of what passes, while colluders absorb the traces"""

    scale: str = "1e30"
    foresight: ClassVar[bool] = False
    covers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        wanted = f"scale is 'edge', or a positive number up to {_LARGEST:g}, got {self.scale}"
        try:
            length = self.length
        except ValueError:
            raise ValueError(wanted) from None
        if length is not None and not 0 < length <= _LARGEST:
            raise ValueError(wanted)

    @property
    def length(self) -> float | None:
        """Length of the aggregate; None is the edge of what passes."""
        return None if self.scale == "edge" else float(self.scale)
