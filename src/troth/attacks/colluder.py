"""A colluder's conduct in the protocol: it follows the phases, but never helps to convict one of its own."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from troth.crypto import Digest, PeerId, Slot
from troth.protocol.core.channel import Blame, Channel, Delivery, Entry, Equivocations, ProvenParts, Showing
from troth.protocol.core.parts import ProvenPart
from troth.protocol.core.run import Run
from troth.protocol.core.state import State
from troth.protocol.wire.messages import Accuse, Announced, Ballot, Measured, Message, SignedRejoin, Verdict, Vote

Choose = Callable[[Mapping[PeerId, Announced]], Message | None]


class LiarsChannel(Channel, Protocol):
    """What a liar can do beyond an honest member: speak last, or not at all."""

    async def announce_last(self, slot: Slot, choose: Choose) -> Mapping[PeerId, Announced]:
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


class ColludingChannel:
    """Wraps a member's channel: drops accusations of fellow colluders, and votes against whoever accuses them."""

    def __init__(self, honest: LiarsChannel, me: PeerId, collusion: Collusion) -> None:
        self._honest = honest
        self._me = me
        self._collusion = collusion
        self._colluders = collusion.colluders
        self._run = collusion.run
        self._active = collusion.active

    def __getattr__(self, name: str) -> Any:
        """What coming back needs of a channel, beside what a step does."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_honest"], name)

    def enter(self, entry: Entry) -> None:
        self._honest.enter(entry)

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        return await self._honest.announce(slot, self._shielding(message))

    async def announce_last(self, slot: Slot, choose: Choose) -> Mapping[PeerId, Announced]:
        """So that conducts can be put around each other."""
        return await self._honest.announce_last(slot, choose)

    def _shielding(self, message: Message) -> Message:
        if isinstance(message, Accuse):
            others = tuple(a for a in message.accusations if a.target not in self._colluders)
            return msgspec.structs.replace(message, accusations=others)
        if isinstance(message, Vote):
            return Vote(tuple(self._shielding_ballot(ballot) for ballot in message.ballots))
        return message

    def _shielding_ballot(self, ballot: Ballot) -> Ballot:
        return cast_as(ballot, Verdict.ACCUSER) if ballot.target in self._colluders else ballot

    def equivocations(self, step: int) -> Equivocations:
        return self._honest.equivocations(step)

    def blame(self) -> Blame:
        return self._honest.blame()

    def rejoins(self, step: int) -> Iterable[SignedRejoin]:
        return self._honest.rejoins(step)

    def took(self) -> Measured | None:
        return self._honest.took()

    async def scatter(self, slot: Slot, proven_parts: Mapping[int, tuple[PeerId, ProvenPart]]) -> ProvenParts:
        return await self._honest.scatter(slot, proven_parts)

    async def gather(self, slot: Slot, mine: Mapping[int, bytes], wanted: Mapping[int, Digest]) -> Mapping[int, bytes]:
        return await self._honest.gather(slot, mine, wanted)

    async def disclose(
        self, slot: Slot, mine: ProvenParts, wanted: Collection[Showing], count: int
    ) -> Mapping[Showing, Mapping[PeerId, ProvenPart]]:
        return await self._honest.disclose(slot, mine, wanted, count)

    async def pass_on(
        self,
        slot: Slot,
        proven_parts: Mapping[Delivery, tuple[PeerId, ProvenPart]],
        wanted: Collection[Delivery],
        fits: Callable[[Delivery, ProvenPart], bool],
    ) -> Mapping[Delivery, ProvenPart]:
        return await self._honest.pass_on(slot, proven_parts, wanted, fits)


def cast_as(ballot: Ballot, verdict: Verdict) -> Ballot:
    return msgspec.structs.replace(ballot, verdict=verdict)
