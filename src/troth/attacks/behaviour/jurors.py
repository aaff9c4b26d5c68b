"""Jurors that vote against what they found."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from troth.attacks.colluder import ColludingChannel, cast_as
from troth.attacks.gradient import SignFlip
from troth.crypto import PeerId, Slot
from troth.protocol.core.channel import AttemptView
from troth.protocol.wire.messages import Announced, Message, Verdict, Vote


class LyingJuror(ColludingChannel):
    """Votes for the opposite of what it found, in every trial."""

    forgetful: ClassVar[bool] = True

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Mapping[PeerId, Announced]:
        if isinstance(message, Vote) and self._active(slot.step):
            other = {Verdict.ACCUSED: Verdict.ACCUSER}
            lies = Vote(tuple(cast_as(b, other.get(b.verdict, Verdict.ACCUSED)) for b in message.ballots))
            return await self._honest.announce(slot, lies, view)
        return await super().announce(slot, message, view)


@dataclass(frozen=True)
class LyingJury(SignFlip):
    """flip signs, and in every trial vote for the opposite of what was found"""

    behaviour: ClassVar[type[ColludingChannel]] = LyingJuror
    needs_protocol: ClassVar[bool] = True
