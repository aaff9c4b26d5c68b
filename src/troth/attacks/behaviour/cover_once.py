"""One covered step with any number in it: the harm is done before the audit comes.

Liars that shift their aggregates a little are found after some steps. These do as much harm as they can in a few: the model
is where they put it, whatever audits find later. With `scale=edge` they stay just within what everyone checks from
announced numbers (SPEC V2, V3), so that no dispute stops the step.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.aggregation import centered_clip, clip_residual
from troth.attacks.behaviour.cover import CoveringColluder, Gap
from troth.attacks.gradient.base import GradientAttack
from troth.crypto import PeerId, Slot
from troth.protocol.core.channel import AttemptView, Said
from troth.protocol.core.scales import lower_median
from troth.protocol.wire.messages import Message, Report, ReportNumbers

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

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        self._members = view.members
        if isinstance(message, Report) and message.numbers and self._active(slot.step):
            parts, projections = len(self._bounds()) - 1, self._run.parameters.projections
            numbers = ReportNumbers.unpack(message.numbers, parts, projections)
            assert isinstance(numbers, ReportNumbers)
            self._right(slot)[self._me] = numbers.projections_PK
        return await super().announce(slot, message, view)

    def _right(self, slot: Slot) -> dict[PeerId, NDArray[np.float64]]:
        """Projections that each colluder would report if it did not lie."""
        board: dict[PeerId, NDArray[np.float64]] = self._collusion.board.setdefault(
            ("right", slot.step, slot.attempt), {}
        )
        return board

    def _share(self, gap: Gap, right_K: NDArray[np.float64]) -> NDArray[np.float64]:
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
