"""Owners that lie about the aggregate of their part: a wrong one, or one that nobody gets."""

import math
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import torch
from torch import Tensor

from troth.aggregation import centered_clip, exact_norm, judge_center
from troth.attacks.colluder import ColludingChannel
from troth.attacks.gradient.base import GradientAttack
from troth.crypto import Slot, stream
from troth.protocol.core.channel import AttemptView, Exchange, Gather, ProvenParts, Said, Scatter
from troth.protocol.core.parts import rows_of
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Center, Clip, Message

# P contributors, D coordinates


class ShiftingOwner(ColludingChannel):
    """Announces and serves a wrong aggregate: by default the mean of its rows turned round."""

    _rows: dict[int, list[Tensor]]
    _forged: dict[int, Blob]

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        if isinstance(blobs, Gather):
            blobs = replace(blobs, mine={**blobs.mine, **self._forged})
        received = await super().exchange(slot, blobs, view)
        if isinstance(blobs, Scatter):
            self._keep_rows(slot, blobs, received)
        return received

    def _keep_rows(self, slot: Slot, blobs: Scatter, received: ProvenParts) -> None:
        kept = self._rows if slot.attempt else {}
        # Others may send blobs of any length.
        lengths = {part: len(proven.blob) for part, (_, proven) in blobs.parts.items()}
        fitting = {
            part: [proven for proven in sent.values() if len(proven.blob) == lengths[part]]
            for part, sent in received.items()
            if part in lengths
        }
        self._rows = kept | {
            part: list(rows_of(proven_parts)) for part, proven_parts in fitting.items() if proven_parts
        }

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        self._forged = {} if isinstance(message, Clip) else getattr(self, "_forged", {})
        return await super().announce(slot, message, view)

    def _instead(self, slot: Slot, message: Message) -> Message:
        if isinstance(message, Clip):
            forged = tuple(self._forge(slot, center) for center in message.centers)
            return msgspec.structs.replace(message, centers=forged)
        return message

    def _forge(self, slot: Slot, center: Center) -> Center:
        wrong_D = self._wrong(slot, center.part)
        forged = self._forged[center.part] = Blob.of(wrong_D)
        return Center(center.part, forged.digest, exact_norm(wrong_D))

    def _wrong(self, slot: Slot, part: int) -> Tensor:
        rows_PD, attack, parameters = torch.stack(self._rows[part]), self._collusion.attack, self._run.parameters
        if isinstance(attack, WrongAggregate) and attack.border:
            tau = parameters.tau * math.sqrt(rows_PD.shape[1] / parameters.size)
            share = 0.5 + float(stream(self._run.id, "border", self._me, slot.step, part).uniform(1)[0])
            return at_the_border(rows_PD, tau, share)
        return -rows_PD.mean(dim=0)


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
class WrongAggregate(GradientAttack, behaves=ShiftingOwner):
    """as owner of a part, announce the mean of its rows turned round instead of the clipped centre"""

    border: bool = False  # instead: off by about as much as passes, where peers that compute differently would disagree


class WithholdingOwner(ColludingChannel):
    """Announces its aggregate and hands it to nobody."""

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        if isinstance(blobs, Gather) and self._active(slot.step):
            blobs = replace(blobs, mine={})
        return await super().exchange(slot, blobs, view)


@dataclass(frozen=True)
class WithheldAggregate(GradientAttack, behaves=WithholdingOwner):
    """as owner of a part, announce the aggregate but hand it to nobody"""
