"""Reporters that lie about their distances from the aggregates."""

from dataclasses import dataclass

import msgspec
import numpy as np

from troth.attacks.colluder import ColludingChannel
from troth.attacks.gradient.base import GradientAttack
from troth.crypto import Slot
from troth.protocol.wire.messages import Message, Report


class LyingReporter(ColludingChannel):
    """Reports twice the right numbers about its first part."""

    def _instead(self, slot: Slot, message: Message) -> Message:
        if not isinstance(message, Report) or not message.numbers:
            return message
        numbers = np.frombuffer(message.numbers, "<f8").copy()
        numbers[1 : self._run.parameters.projections + 2] *= 2  # not its own length, which must add up
        return msgspec.structs.replace(message, numbers=numbers.tobytes())


@dataclass(frozen=True)
class WrongReport(GradientAttack, behaves=LyingReporter):
    """report wrong distances from the aggregate of one part"""
