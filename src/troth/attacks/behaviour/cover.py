"""Covered aggregates: wrong ones whose traces colluders absorb in their reports, so that every public check passes.

The owner announces a shifted aggregate. The reports then no longer add up to nothing, so the colluding contributors add
what is missing to theirs: V2 holds, and the owner, who would have to name them, says nothing. The audit remains: it finds
a report that does not follow from its gradient, and with it the owner that let it pass (SPEC T7). It works because nobody
knows, when reports are made, whom the next step will audit: that is drawn with a second coin.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.attacks.behaviour.owners import ShiftingOwner
from troth.attacks.behaviour.public import audits_among_committed, contributors_of
from troth.attacks.gradient.base import GradientAttack
from troth.crypto import PeerId, Slot, projection_signs
from troth.protocol.core.channel import AttemptView, Exchange, Said, Scatter
from troth.protocol.core.coins import combine
from troth.protocol.core.parts import part_bounds
from troth.protocol.wire.messages import Announced, Message, Phase, Report, ReportNumbers, Reveal

# P contributors, K projections, D coordinates


@dataclass(frozen=True)
class Gap:
    """Sum that honest reports about one part lack to zero, and the colluders that absorb it."""

    slot: Slot
    part: int
    missing_K: NDArray[np.float64]
    helpers: Collection[PeerId]


class CoveringColluder(ShiftingOwner):
    """As owner, shifts its aggregate and works out the gap in the reports; as reporter, adds its share of it."""

    _commits: Mapping[PeerId, Announced]
    _coins_a: Mapping[PeerId, bytes]
    _parts: int

    def _wrong(self, slot: Slot, part: int) -> Tensor:
        """Away from where the honest would go, by `shift` times the clipping radius."""
        rows_PD = torch.stack(self._rows[part])
        mean_D = rows_PD.mean(dim=0)
        length = float(torch.linalg.vector_norm(mean_D)) or 1.0
        shifted_D: Tensor = mean_D - mean_D / length * self._collusion.attack.shift * self._tau(rows_PD.shape[1])
        return shifted_D

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        if isinstance(message, Report) and message.numbers and self._active(slot.step):
            honest = message
            # Last, since colluding owners must have worked out first what is missing.
            return await self._honest.announce_last(slot, lambda _: self._absorbing(slot, honest), view)
        return await super().announce(slot, message, view)

    def _heard(self, slot: Slot, announced: Said) -> None:
        if slot.phase == Phase.COMMIT:
            self._commits = announced
        if slot.phase == Phase.REVEAL:
            self._coins_a = {p: a.message.coin for p, a in announced.items() if isinstance(a.message, Reveal)}
            for part in self._forged:
                self._missing_by_part(slot)[part] = self._missing(slot, part)

    def _missing_by_part(self, slot: Slot) -> dict[int, NDArray[np.float64]]:
        """Gaps that colluding owners told the others."""
        board: dict[int, NDArray[np.float64]] = self._collusion.board.setdefault(
            ("missing", slot.step, slot.attempt), {}
        )
        return board

    def _missing(self, slot: Slot, part: int) -> NDArray[np.float64]:
        """Sum of honest reports about this part, which should be zero: the owner holds everyone's rows."""
        parameters, bounds = self._run.parameters, self._bounds()
        key = combine("projections", slot.step, slot.attempt, self._coins_a)
        start, stop = bounds[part], bounds[part + 1]
        signs_KD = projection_signs(key, parameters.projections, start, stop).astype(np.float64)
        center_D = self._forged[part].array_D.astype(np.float64)
        away_PD = torch.stack(self._rows[part]).double().numpy() - center_D
        norms_P = np.sqrt(np.square(away_PD).sum(axis=1))
        clipped_PD = away_PD * (self._tau(stop - start) / np.maximum(norms_P, self._tau(stop - start)))[:, None]
        return np.asarray(clipped_PD.sum(axis=0) @ signs_KD.T)

    def _absorbing(self, slot: Slot, honest: Report) -> Report:
        parameters, parts = self._run.parameters, len(self._bounds()) - 1
        numbers = ReportNumbers.unpack(honest.numbers, parts, parameters.projections)
        assert isinstance(numbers, ReportNumbers)
        norms_P, projections_PK = numbers.norms_P.copy(), numbers.projections_PK.copy()
        helpers = self._colluders & set(self._contributors())
        if self._collusion.attack.foresight:
            helpers -= self._guessed_targets(slot)  # a helper that would be found tells the truth
        if self._me not in helpers:
            return honest
        for part, missing_K in self._missing_by_part(slot).items():
            gap = Gap(slot, part, missing_K, helpers)
            projections_PK[part] = self._share(gap, projections_PK[part])
            tau = self._tau(self._bounds()[part + 1] - self._bounds()[part])
            least = min(math.sqrt(float(np.square(projections_PK[part]).mean())) / 2.5 * 1.01, tau)
            norms_P[part] = self._told_norm(float(norms_P[part]), least)
        absorbing = ReportNumbers(numbers.lengths_P, norms_P, projections_PK)
        return msgspec.structs.replace(honest, numbers=absorbing.pack())

    def _share(self, gap: Gap, right_K: NDArray[np.float64]) -> NDArray[np.float64]:
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

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        if isinstance(blobs, Scatter) and blobs.parts and not slot.attempt:
            self._parts = len(blobs.parts)  # one for each drawn contributor, whether it committed or not
        return await super().exchange(slot, blobs, view)

    def _bounds(self) -> tuple[int, ...]:
        return part_bounds(self._run.parameters.size, self._parts)

    def _tau(self, length: int) -> float:
        whole = self._run.parameters.tau if self._collusion.state is None else self._collusion.state().scales.tau
        return whole * math.sqrt(length / self._run.parameters.size)


@dataclass(frozen=True)
class CoveredAggregate(GradientAttack, behaves=CoveringColluder, positive=("shift",)):
    """as owner, shift the aggregate by `shift` radii, while colluders absorb the traces in their reports"""

    shift: float = 0.3
    foresight: bool = False
    covers: ClassVar[bool] = True
