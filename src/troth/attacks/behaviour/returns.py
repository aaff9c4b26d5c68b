"""Doorkeepers: liars that let nobody come back, and drive out the honest where they are enough."""

from dataclasses import dataclass

import msgspec

from troth.attacks.behaviour.accusers import FalseAccuser
from troth.attacks.behaviour.public import owners_now
from troth.attacks.colluder import cast_as
from troth.attacks.gradient.base import GradientAttack
from troth.crypto import Slot
from troth.protocol.step.deliveries import bitmap, bits_of
from troth.protocol.wire.messages import Accusation, Accuse, Ballot, Commit, Message, Reveal, Verdict, Vote


class Doorkeeper(FalseAccuser):
    """Lists no member that wants to come back.

    Where liars are half of the members it disputes links with honest ones; where they are more, it has them banned.
    """

    def _instead(self, slot: Slot, message: Message) -> Message:
        match message:
            case Commit():
                return msgspec.structs.replace(message, rejoins=())
            case Reveal() if self._half(1) and not slot.attempt:
                return msgspec.structs.replace(message, held=self._without_victim(slot.step, message.held))
            case Vote() if self._half(2):
                return Vote(tuple(map(self._winning, message.ballots)))
            case Accuse() if self._half(2):
                return msgspec.structs.replace(message, accusations=tuple(self._lies(slot.step)))
        return message

    def _half(self, more: int) -> bool:
        """Whether liars are half of the members at the start of the step; with 2, more than half."""
        assert self._collusion.state is not None
        members = self._collusion.state().roster.members
        return 2 * len(self._colluders & set(members)) >= len(members) + (more - 1)

    def _without_victim(self, step: int, held: bytes) -> bytes:
        """Deny one honest owner's aggregates: the same for all liars, another in each step (SPEC F1, F3)."""
        owners = owners_now(self._collusion, self._members)
        honest = sorted(set(owners) - self._colluders)
        if not honest:
            return held
        bits = bits_of([held], len(owners))[0].tolist()
        return bitmap([bit and owner != honest[step % len(honest)] for bit, owner in zip(bits, owners, strict=True)])

    def _lies(self, step: int) -> list[Accusation]:
        return self._accusing(self._honest_contributors, step)

    def _winning(self, ballot: Ballot) -> Ballot:
        if ballot.target in self._colluders:
            return cast_as(ballot, Verdict.ACCUSER)
        return cast_as(ballot, Verdict.ACCUSED) if ballot.accuser in self._colluders else ballot


@dataclass(frozen=True)
class BlockReturns(GradientAttack, behaves=Doorkeeper):
    """let nobody come back; where enough are gone, break off with the rest, and vote them out"""
