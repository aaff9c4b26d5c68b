"""Owners that lie about the aggregate of their part: a wrong one, or one that nobody gets."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import msgspec
import torch
from torch import Tensor

from troth.aggregation import centered_clip, exact_norm, judge_center
from troth.attacks.colluder import ColludingChannel
from troth.attacks.gradient import GradientAttack
from troth.crypto import Digest, PeerId, Slot, blob_digest, stream
from troth.protocol.core.channel import AttemptView, ProvenParts
from troth.protocol.core.parts import ProvenPart, rows_of
from troth.protocol.wire.messages import Announced, Center, Clip, Message
from troth.protocol.wire.primitives import to_blob

# P contributors, D coordinates


class ShiftingOwner(ColludingChannel):
    """Announces and serves a wrong aggregate: by default the mean of its rows turned round."""

    _rows: dict[int, list[Tensor]]
    _forged: dict[int, bytes]

    async def scatter(
        self,
        slot: Slot,
        parts: Mapping[int, tuple[PeerId, ProvenPart]],
        expected: Mapping[int, frozenset[PeerId]],
        view: AttemptView,
    ) -> ProvenParts:
        received = await super().scatter(slot, parts, expected, view)
        kept = self._rows if slot.attempt else {}
        # Others may send blobs of any length.
        lengths = {part: len(proven.blob) for part, (_, proven) in parts.items()}
        fitting = {
            part: [proven for proven in sent.values() if len(proven.blob) == lengths[part]]
            for part, sent in received.items()
            if part in lengths
        }
        self._rows = kept | {
            part: list(rows_of(proven_parts)) for part, proven_parts in fitting.items() if proven_parts
        }
        return received

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Mapping[PeerId, Announced]:
        self._forged = {} if isinstance(message, Clip) else getattr(self, "_forged", {})
        if isinstance(message, Clip) and self._active(slot.step):
            forged = tuple(self._forge(slot, center) for center in message.centers)
            message = msgspec.structs.replace(message, centers=forged)
        return await super().announce(slot, message, view)

    def _forge(self, slot: Slot, center: Center) -> Center:
        wrong_D = self._wrong(slot, center.part)
        self._forged[center.part] = to_blob(wrong_D)
        return Center(center.part, blob_digest(self._forged[center.part]), exact_norm(wrong_D))

    def _wrong(self, slot: Slot, part: int) -> Tensor:
        rows_PD, attack, parameters = torch.stack(self._rows[part]), self._collusion.attack, self._run.parameters
        if isinstance(attack, WrongAggregate) and attack.border:
            tau = parameters.tau * math.sqrt(rows_PD.shape[1] / parameters.size)
            share = 0.5 + float(stream(self._run.id, "border", self._me, slot.step, part).uniform(1)[0])
            return at_the_border(rows_PD, tau, share)
        return -rows_PD.mean(dim=0)

    async def gather(
        self,
        slot: Slot,
        mine: Mapping[int, bytes],
        wanted: Mapping[int, Digest],
        ask: Mapping[int, frozenset[PeerId]],
        view: AttemptView,
    ) -> Mapping[int, bytes]:
        return await super().gather(slot, {**mine, **self._forged}, wanted, ask, view)


def at_the_border(rows_PD: Tensor, tau: float, share: float) -> Tensor:
    """An aggregate off the clipped centre by this share of what V2 lets pass (SPEC V2)."""
    center_D = centered_clip(rows_PD, tau=tau)
    towards_D = center_D / (float(torch.linalg.vector_norm(center_D)) or 1.0)

    def off(length: float) -> float:
        away_D = center_D + length * towards_D
        residual, tolerance = judge_center(rows_PD, away_D, tau=tau)
        return residual / tolerance

    least, most = 0.0, tau
    for _ in range(40):
        middle = (least + most) / 2
        least, most = (middle, most) if off(middle) < share else (least, middle)
    return center_D + least * towards_D


@dataclass(frozen=True)
class WrongAggregate(GradientAttack):
    """as owner of a part, announce the mean of its rows turned round instead of the clipped centre"""

    border: bool = False  # instead: off by about as much as passes, where peers that compute differently would disagree
    behaviour: ClassVar[type[ColludingChannel]] = ShiftingOwner
    needs_protocol: ClassVar[bool] = True


class WithholdingOwner(ColludingChannel):
    """Announces its aggregate and hands it to nobody."""

    async def gather(
        self,
        slot: Slot,
        mine: Mapping[int, bytes],
        wanted: Mapping[int, Digest],
        ask: Mapping[int, frozenset[PeerId]],
        view: AttemptView,
    ) -> Mapping[int, bytes]:
        return await super().gather(slot, {} if self._active(slot.step) else mine, wanted, ask, view)


@dataclass(frozen=True)
class WithheldAggregate(GradientAttack):
    """as owner of a part, announce the aggregate but hand it to nobody"""

    behaviour: ClassVar[type[ColludingChannel]] = WithholdingOwner
    needs_protocol: ClassVar[bool] = True
