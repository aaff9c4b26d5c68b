"""Reporters that lie about their distances from the aggregates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import msgspec
import numpy as np

from troth.attacks.colluder import ColludingChannel
from troth.attacks.gradient import GradientAttack
from troth.crypto import PeerId, Slot
from troth.protocol.core.channel import AttemptView
from troth.protocol.wire.messages import Announced, Message, Report


class LyingReporter(ColludingChannel):
    """Reports twice the right numbers about its first part."""

    forgetful: ClassVar[bool] = True

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Mapping[PeerId, Announced]:
        if isinstance(message, Report) and message.numbers and self._active(slot.step):
            numbers = np.frombuffer(message.numbers, "<f8").copy()
            numbers[1 : self._run.parameters.projections + 2] *= 2  # not its own length, which must add up
            message = msgspec.structs.replace(message, numbers=numbers.tobytes())
        return await super().announce(slot, message, view)


@dataclass(frozen=True)
class WrongReport(GradientAttack):
    """report wrong distances from the aggregate of one part"""

    behaviour: ClassVar[type[ColludingChannel]] = LyingReporter
    needs_protocol: ClassVar[bool] = True
