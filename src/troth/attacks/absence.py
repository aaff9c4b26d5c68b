"""Liars who are not there, and liars who see to it that others are not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from troth.attacks.colluder import ColludingChannel
from troth.attacks.conduct import VanishedError
from troth.attacks.gradient import GradientAttack
from troth.crypto import Context, PeerId
from troth.protocol.messages import Announced, Message


class Leaver(ColludingChannel):
    """Says nothing more, from the first announcement of a step on."""

    async def announce(self, context: Context, message: Message) -> Mapping[PeerId, Announced]:
        if self._active(context.step):
            raise VanishedError("left the run")
        return await super().announce(context, message)


@dataclass(frozen=True)
class Leave(GradientAttack):
    """leave: no lie, no sign of life, as many at once as the run says it can bear"""

    conduct: ClassVar[type[ColludingChannel]] = Leaver
    needs_protocol: ClassVar[bool] = True
