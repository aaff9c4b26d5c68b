"""Jurors that vote against what they found."""

from dataclasses import dataclass

from troth.attacks.colluder import ColludingChannel, cast_as
from troth.attacks.gradient.scaled import SignFlip
from troth.crypto import Slot
from troth.protocol.core.channel import AttemptView, Said
from troth.protocol.wire.messages import Message, Verdict, Vote


class LyingJuror(ColludingChannel):
    """Votes for the opposite of what it found, in every trial."""

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        if isinstance(message, Vote) and self._active(slot.step):
            other = {Verdict.ACCUSED: Verdict.ACCUSER}
            lies = Vote(tuple(cast_as(b, other.get(b.verdict, Verdict.ACCUSED)) for b in message.ballots))
            return await self._honest.announce(slot, lies, view)
        return await super().announce(slot, message, view)


@dataclass(frozen=True)
class LyingJury(SignFlip, behaves=LyingJuror):
    """flip signs, and in every trial vote for the opposite of what was found"""
