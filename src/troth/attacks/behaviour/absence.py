"""Liars who are not there, and liars who see to it that others are not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from troth.attacks.behaviour.members import FalseAccuser, VanishedError
from troth.attacks.behaviour.public import owners_now
from troth.attacks.colluder import ColludingChannel, cast_as
from troth.attacks.gradient import GradientAttack
from troth.crypto import PeerId, Slot
from troth.protocol.core.channel import Entry
from troth.protocol.step.deliveries import bitmap, bits_of
from troth.protocol.wire.messages import (
    Accusation,
    Accuse,
    Announced,
    Ballot,
    Commit,
    Kind,
    Message,
    Reveal,
    Verdict,
    Vote,
)


class Leaver(ColludingChannel):
    """Says nothing more, from the first announcement of a step on."""

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        if self._active(slot.step):
            raise VanishedError("left the run")
        return await super().announce(slot, message)


class Doorkeeper(FalseAccuser):
    """Lists nobody who wants to come back. As one of half of the members it breaks off with honest ones, and as one of more
    than half it has them banned."""

    _members: frozenset[PeerId] = frozenset()

    def enter(self, entry: Entry) -> None:
        self._members = entry.members
        super().enter(entry)

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        if not self._active(slot.step):
            return await ColludingChannel.announce(self, slot, message)
        if isinstance(message, Commit):
            message = msgspec.structs.replace(message, rejoins=())
        elif isinstance(message, Reveal) and self._half(1) and not slot.attempt:
            message = msgspec.structs.replace(message, held=self._without_victim(slot.step, message.held))
        elif isinstance(message, Vote) and self._half(2):
            return await self._honest.announce(slot, Vote(tuple(map(self._winning, message.ballots))))
        elif isinstance(message, Accuse) and self._half(2):
            message = msgspec.structs.replace(message, accusations=tuple(self._lies(slot.step)))
        announced = await ColludingChannel.announce(self, slot, message)
        self._note(slot.step, message, announced)
        return announced

    def _half(self, more: int) -> bool:
        """Whether we are half of the members at the start of the step; with 2, more than that."""
        assert self._collusion.state is not None
        members = self._collusion.state().roster.members
        return 2 * len(self._colluders & set(members)) >= len(members) + (more - 1)

    def _without_victim(self, step: int, held: bytes) -> bytes:
        """As if one honest owner's aggregates had not come: the same for all of us, another in each step (SPEC F1, F3)."""
        owners = owners_now(self._collusion, self._members)
        honest = sorted(set(owners) - self._colluders)
        if not honest:
            return held
        bits = bits_of([held], len(owners))[0].tolist()
        return bitmap([bit and owner != honest[step % len(honest)] for bit, owner in zip(bits, owners, strict=True)])

    def _lies(self, step: int) -> list[Accusation]:
        named = ((peer, part) for part in self._mine[:1] for peer in self._honest_contributors)
        return [self._lie(peer, Kind.REPORT, step, part) for peer, part in named]

    def _winning(self, ballot: Ballot) -> Ballot:
        if ballot.target in self._colluders:
            return cast_as(ballot, Verdict.ACCUSER)
        return cast_as(ballot, Verdict.ACCUSED) if ballot.accuser in self._colluders else ballot


@dataclass(frozen=True)
class Leave(GradientAttack):
    """leave: no lie, no sign of life, as many at once as the run says it can bear"""

    behaviour: ClassVar[type[ColludingChannel]] = Leaver
    needs_protocol: ClassVar[bool] = True


@dataclass(frozen=True)
class BlockReturns(GradientAttack):
    """let nobody come back; where enough are gone, break off with the rest, and vote them out"""

    behaviour: ClassVar[type[ColludingChannel]] = Doorkeeper
    needs_protocol: ClassVar[bool] = True
