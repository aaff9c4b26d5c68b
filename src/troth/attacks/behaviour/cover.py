"""A wrong aggregate whose traces colluders absorb in their reports: it passes every check that uses public numbers.

The owner announces a shifted aggregate. The reports then no longer add up to nothing, so the colluding contributors add
what is missing to theirs: V2 holds, and the owner, who would have to name them, says nothing. What is left against it is the
audit, which finds a report that does not follow from its gradient, and with it the owner that let it pass (SPEC T7). It works
because nobody knows, when reports are made, whom the next step will audit: that is drawn with a second coin.
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

from troth.attacks.behaviour.members import ShiftingOwner
from troth.attacks.colluder import ColludingChannel
from troth.attacks.gradient import GradientAttack, positive
from troth.crypto import Digest, PeerId, Slot, projection_signs
from troth.protocol.core.channel import ProvenParts
from troth.protocol.core.coins import combine
from troth.protocol.core.parts import ProvenPart, part_bounds
from troth.protocol.core.roles import PendingAudits, draw_roles
from troth.protocol.core.roster import Roster
from troth.protocol.wire.messages import Announced, Commit, Message, Report, ReportNumbers, Reveal

# P contributors, K projections, D coordinates


class CoveringColluder(ShiftingOwner):
    """As owner, shifts its aggregate and works out what is missing; as reporter, adds its share of that."""

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

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        if isinstance(message, Report) and message.numbers and self._active(slot.step):
            honest = message
            # Last, since the owners among us must have worked out first what is missing.
            return await self._honest.announce_last(slot, lambda _: self._absorbing(slot, honest))
        announced = await super().announce(slot, message)
        if isinstance(message, Commit):
            self._commits = announced
        if isinstance(message, Reveal):
            self._coins_a = {p: a.message.coin for p, a in announced.items() if isinstance(a.message, Reveal)}
            for part in self._forged:
                self._missing_by_part(slot)[part] = self._missing(slot, part)
        return announced

    def _missing_by_part(self, slot: Slot) -> dict[int, NDArray[np.float64]]:
        """What the owners among us told the others."""
        board: dict[int, NDArray[np.float64]] = self._collusion.board.setdefault(
            ("missing", slot.step, slot.attempt), {}
        )
        return board

    def _missing(self, slot: Slot, part: int) -> NDArray[np.float64]:
        """What honest reports about this part will add up to: the owner holds everyone's rows."""
        parameters, bounds = self._run.parameters, self._bounds()
        key = combine("projections", slot.step, slot.attempt, self._coins_a)
        start, stop = bounds[part], bounds[part + 1]
        signs_KD = projection_signs(key, parameters.projections, start, stop).astype(np.float64)
        center_D = np.frombuffer(self._forged[part], "<f4").astype(np.float64)
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
            helpers -= self._guessed_targets(slot)  # whoever would be found tells the truth
        if self._me not in helpers:
            return honest
        for part, missing_K in self._missing_by_part(slot).items():
            projections_PK[part] = self._share(slot, part, projections_PK[part], missing_K, helpers)
            tau = self._tau(self._bounds()[part + 1] - self._bounds()[part])
            least = min(math.sqrt(float(np.square(projections_PK[part]).mean())) / 2.5 * 1.01, tau)
            norms_P[part] = self._told_norm(float(norms_P[part]), least)
        absorbing = ReportNumbers(numbers.lengths_P, norms_P, projections_PK)
        return msgspec.structs.replace(honest, numbers=absorbing.pack())

    def _share(
        self,
        slot: Slot,
        part: int,
        right_K: NDArray[np.float64],
        missing_K: NDArray[np.float64],
        helpers: Collection[PeerId],
    ) -> NDArray[np.float64]:
        """What this helper reports in place of what would be right."""
        return right_K - missing_K / len(helpers)

    def _told_norm(self, right: float, least: float) -> float:
        """The distance to report, where its projections allow no shorter one than `least` (SPEC V2)."""
        return max(right, least)

    def _guessed_targets(self, slot: Slot) -> set[PeerId]:
        """Whom the next step audits, if the coins that draw it were those already open. With two coins they are not."""
        drawn = combine("roles", slot.step, slot.attempt, self._coins_a)
        roles = draw_roles(
            self._run,
            Roster(tuple(sorted(self._commits))),
            Digest(drawn),
            PendingAudits(slot.step, self._contributors()),
        )
        honest = {auditor: audits for auditor, audits in roles.audits.items() if auditor not in self._colluders}
        return {audit.target for audits in honest.values() for audit in audits}

    def _contributors(self) -> tuple[PeerId, ...]:
        return tuple(p for p, a in sorted(self._commits.items()) if isinstance(a.message, Commit) and a.message.root)

    async def scatter(self, slot: Slot, proven_parts: Mapping[int, tuple[PeerId, ProvenPart]]) -> ProvenParts:
        if proven_parts and not slot.attempt:
            self._parts = len(proven_parts)  # those who were to contribute, whether they committed or not
        return await super().scatter(slot, proven_parts)

    def _bounds(self) -> tuple[int, ...]:
        return part_bounds(self._run.parameters.size, self._parts)

    def _tau(self, length: int) -> float:
        whole = self._run.parameters.tau if self._collusion.state is None else self._collusion.state().scales.tau
        return whole * math.sqrt(length / self._run.parameters.size)


@dataclass(frozen=True)
class CoveredAggregate(GradientAttack):
    """as owner, shift the aggregate by `shift` radii, while colluders absorb the traces in their reports"""

    shift: float = 0.3
    foresight: bool = False
    behaviour: ClassVar[type[ColludingChannel]] = CoveringColluder
    needs_protocol: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive("shift", self.shift)
