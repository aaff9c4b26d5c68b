"""A colluder's behaviour in the protocol: it follows the phases, but never helps to convict one of its own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from troth.crypto import PeerId, Slot
from troth.protocol.core.channel import AttemptView, Channel, ForwardingChannel, Said
from troth.protocol.core.run import Run
from troth.protocol.core.state import State
from troth.protocol.wire.messages import Accuse, Ballot, Message, Verdict, Vote

Choose = Callable[[Said], Message | None]


class LiarsChannel(Channel, Protocol):
    """What a liar can do beyond an honest member: speak last, or not at all."""

    async def announce_last(self, slot: Slot, choose: Choose, view: AttemptView) -> Said:
        """Choose what to say knowing what the honest have said; None is silence."""
        ...


@dataclass(frozen=True)
class Collusion:
    """What colluders know and share."""

    attack: Any  # the options of this member's attack
    colluders: frozenset[PeerId]
    run: Run
    active: Callable[[int], bool]  # whether the coalition attacks in this step
    board: dict[Any, Any] = field(default_factory=dict)  # what they tell each other
    state: Callable[[], State[Any]] | None = None  # what this member's own code holds at the start of the step


class ColludingChannel(ForwardingChannel):
    """Wraps a member's channel: drops accusations of fellow colluders, and votes against whoever accuses them."""

    _members: frozenset[PeerId] = frozenset()  # of the attempt

    def __init__(self, honest: LiarsChannel, me: PeerId, collusion: Collusion) -> None:
        super().__init__(honest)
        self._honest = honest
        self._me = me
        self._collusion = collusion
        self._colluders = collusion.colluders
        self._run = collusion.run
        self._active = collusion.active

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        self._members = view.members
        said = self._shielding(message)
        if self._active(slot.step):
            said = self._instead(slot, said)
        announced = await self._honest.announce(slot, said, view)
        self._heard(slot, announced)
        return announced

    def _instead(self, slot: Slot, message: Message) -> Message:
        """What to say in place of this while the coalition attacks."""
        return message

    def _heard(self, slot: Slot, announced: Said) -> None:
        """Take note of what all have announced."""

    async def announce_last(self, slot: Slot, choose: Choose, view: AttemptView) -> Said:
        """So that behaviours can be put around each other."""
        return await self._honest.announce_last(slot, choose, view)

    def _shielding(self, message: Message) -> Message:
        if isinstance(message, Accuse):
            others = tuple(a for a in message.accusations if a.target not in self._colluders)
            return msgspec.structs.replace(message, accusations=others)
        if isinstance(message, Vote):
            return Vote(tuple(self._shielding_ballot(ballot) for ballot in message.ballots))
        return message

    def _shielding_ballot(self, ballot: Ballot) -> Ballot:
        return cast_as(ballot, Verdict.ACCUSER) if ballot.target in self._colluders else ballot


def cast_as(ballot: Ballot, verdict: Verdict) -> Ballot:
    return msgspec.structs.replace(ballot, verdict=verdict)
