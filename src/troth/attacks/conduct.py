"""Lies in the protocol itself: as owner of a part, as reporter, as accuser. Gradients stay honest.

Each is a wrapper around the honest member's channel; the member's own code knows nothing of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from troth.attacks.colluder import ColludingChannel
from troth.attacks.gradient import GradientAttack
from troth.crypto import Context, Digest, PeerId, blob_digest
from troth.protocol.channel import PartParcels
from troth.protocol.messages import Accusation, Accuse, Announced, Center, Clip, Kind, Message, Report
from troth.protocol.parts import Parcel
from troth.protocol.primitives import from_blob, to_blob

# D coordinates


class ShiftingOwner(ColludingChannel):
    """Announces and serves, in place of the clipped centre, the mean of its rows turned round."""

    _rows: dict[int, list[Tensor]]
    _forged: dict[int, bytes]

    async def scatter(self, context: Context, parcels: Mapping[int, tuple[PeerId, Parcel]]) -> PartParcels:
        received = await super().scatter(context, parcels)
        kept = self._rows if context.attempt else {}
        self._rows = kept | {part: [from_blob(p.blob) for p in sent.values()] for part, sent in received.items()}
        return received

    async def announce(self, context: Context, message: Message) -> Mapping[PeerId, Announced]:
        self._forged = {} if isinstance(message, Clip) else getattr(self, "_forged", {})
        if isinstance(message, Clip) and self._active(context.step):
            message = Clip(tuple(self._forge(center) for center in message.centers), message.coin_a, message.coin_b)
        return await super().announce(context, message)

    def _forge(self, center: Center) -> Center:
        wrong_D = -torch.stack(self._rows[center.part]).mean(dim=0)
        self._forged[center.part] = to_blob(wrong_D)
        norm = float(torch.linalg.vector_norm(wrong_D, dtype=torch.float64))
        return Center(center.part, blob_digest(self._forged[center.part]), norm)

    async def gather(
        self, context: Context, mine: Mapping[int, bytes], wanted: Mapping[int, Digest]
    ) -> Mapping[int, bytes]:
        return await super().gather(context, {**mine, **self._forged}, wanted)


class LyingReporter(ColludingChannel):
    """Reports twice the right numbers about its first part."""

    async def announce(self, context: Context, message: Message) -> Mapping[PeerId, Announced]:
        if isinstance(message, Report) and message.numbers and self._active(context.step):
            width = 8 * (self._run.parameters.projections + 1)
            first = torch.frombuffer(bytearray(message.numbers[:width]), dtype=torch.float64) * 2
            message = Report(first.numpy().tobytes() + message.numbers[width:])
        return await super().announce(context, message)


class FalseAccuser(ColludingChannel):
    """As owner, accuses an honest contributor of a wrong report about its part."""

    _mine: tuple[int, ...] = ()
    _honest_contributor: PeerId | None = None

    async def scatter(self, context: Context, parcels: Mapping[int, tuple[PeerId, Parcel]]) -> PartParcels:
        received = await super().scatter(context, parcels)
        self._mine = tuple(received)
        honest = sorted({peer for sent in received.values() for peer in sent} - self._colluders)
        self._honest_contributor = honest[0] if honest else None
        return received

    async def announce(self, context: Context, message: Message) -> Mapping[PeerId, Announced]:
        victim = self._honest_contributor
        if isinstance(message, Accuse) and self._mine and victim and self._active(context.step):
            lie = Accusation(victim, Kind.REPORT, self._mine[0])
            message = Accuse((*message.accusations, lie), message.coin)
        return await super().announce(context, message)


@dataclass(frozen=True)
class WrongAggregate(GradientAttack):
    """as owner of a part, announce the mean of its rows turned round instead of the clipped centre"""

    conduct: ClassVar[type[ColludingChannel]] = ShiftingOwner
    needs_protocol: ClassVar[bool] = True


@dataclass(frozen=True)
class WrongReport(GradientAttack):
    """report wrong distances from the aggregate of one part"""

    conduct: ClassVar[type[ColludingChannel]] = LyingReporter
    needs_protocol: ClassVar[bool] = True


@dataclass(frozen=True)
class FalseAccusation(GradientAttack):
    """as owner of a part, accuse an honest contributor of a wrong report"""

    conduct: ClassVar[type[ColludingChannel]] = FalseAccuser
    needs_protocol: ClassVar[bool] = True
