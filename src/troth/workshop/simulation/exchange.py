"""Many peers in one process, each a coroutine of its own, advanced together.

A peer runs until it asks for something from outside. When all are waiting, their questions are answered together: one
batched gradient call for all who asked for a gradient, one exchange for all who announced. Nothing else is shared.
"""

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from troth.crypto import Digest, Identity, PeerId, Seed, Slot, signed_bytes, stream
from troth.protocol.core.channel import (
    AttemptView,
    Channel,
    Delivery,
    Disclose,
    Exchange,
    Forward,
    ForwardingChannel,
    Gather,
    Said,
    Scatter,
    Showing,
)
from troth.protocol.core.parts import ProvenPart
from troth.protocol.core.run import CannotGoOnError
from troth.protocol.wire.messages import Envelope, Message
from troth.protocol.wire.phases import seal, wire_bytes
from troth.protocol.wire.primitives import Primitives

R = TypeVar("R")


class Ask:
    """A question to the world outside; awaiting it gives the answer."""

    @property
    def kind(self) -> type:
        """Questions of one kind are answered together."""
        return type(self)

    def __await__(self) -> Generator["Ask", Any, Any]:
        return (yield self)


Answer = Callable[[Mapping[PeerId, Ask]], Mapping[PeerId, Any]]


@dataclass
class CoroutineResults(Generic[R]):
    """How each coroutine ended."""

    results: dict[PeerId, R] = field(default_factory=dict)
    stopped: dict[PeerId, CannotGoOnError] = field(default_factory=dict)  # peers that did not get to the end, and why


def run_together(peers: Mapping[PeerId, Coroutine[Ask, Any, R]], answer: Mapping[type, Answer]) -> CoroutineResults[R]:
    """Advance all coroutines to their end. Kinds of questions are answered in the order of the `answer` table.

    A kind is answered when all peers that can still ask it have: gradients before announcements, so that validators,
    which compute none, wait for contributors.
    """
    waiting: dict[PeerId, Ask] = {}
    ended: CoroutineResults[R] = CoroutineResults()

    def advance(peer: PeerId, value: Any) -> None:
        try:
            waiting[peer] = peers[peer].send(value)
        except StopIteration as stop:
            ended.results[peer] = stop.value
        except CannotGoOnError as why:
            ended.stopped[peer] = why

    try:
        for peer in peers:
            advance(peer, None)
        while waiting:
            kind = next(kind for kind in answer if any(ask.kind is kind for ask in waiting.values()))
            asked = {peer: ask for peer, ask in waiting.items() if ask.kind is kind}
            for peer in asked:
                del waiting[peer]
            for peer, value in answer[kind](asked).items():
                advance(peer, value)
    finally:
        for coroutine in peers.values():
            coroutine.close()
    return ended


# Announcements that arrive: whatever a member says reaches every other unchanged, and so does its silence.


@dataclass
class AskAnnounce(Ask):
    slot: Slot
    choose: Callable[[Mapping[PeerId, Envelope]], Envelope | None]  # given what was said before; None is silence
    last: bool = False  # liars may speak last
    observes: bool = False  # is no member, or leaves: hears everything and says nothing


@dataclass
class AskExchange(Ask):
    blobs: Exchange[Any]
    observes: bool = False

    @property
    def kind(self) -> type:
        return type(self.blobs)


class ReliableChannel:
    """One member's end: it signs what it says, and checks the signature of everything it hears.

    Without an identity it is the end of a peer that is no member: it hears all that members say, and says nothing (SPEC B2).
    """

    def __init__(self, identity: Identity | None, tools: Primitives) -> None:
        self._identity = identity
        self._tools = tools

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        envelope = None if self._identity is None else seal(self._identity, slot, message)
        asked = AskAnnounce(slot, lambda _: envelope, observes=self._identity is None)
        return self._tools.open_all(slot, await asked)

    async def announce_last(self, slot: Slot, choose: Callable[[Said], Message | None], view: AttemptView) -> Said:
        """For liars: say something, or nothing, knowing what the others have said."""

        def answer(said: Mapping[PeerId, Envelope]) -> Envelope | None:
            message = choose(self._tools.open_all(slot, said))
            return None if message is None or self._identity is None else seal(self._identity, slot, message)

        return self._tools.open_all(slot, await AskAnnounce(slot, answer, last=True))

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        answer: Any = await AskExchange(blobs, observes=self._identity is None)
        if isinstance(blobs, Forward):
            fitting = {
                delivery: [p for p in answer.get(delivery, ()) if blobs.fits(delivery, p)] for delivery in blobs.wanted
            }
            answer = {delivery: offers[0] for delivery, offers in fitting.items() if offers}
        return answer


class ReliableExchange:
    """The other end: hands everything to everyone, and counts the bytes that one member receives."""

    def __init__(self, *, share: bool = True) -> None:
        self._share = share  # whether a receiver may use a digest that the sender has computed (SPEC S1)
        self.announced_bytes = 0  # received by the first member, everyone's headers and signatures included
        self.bulk_bytes = 0

    def answers(self) -> dict[type, Answer]:
        return {
            Scatter: self._scatter,
            Gather: self._gather,
            Disclose: self._disclose,
            Forward: self._forward,
            AskAnnounce: self._announce,
        }

    def _announce(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, Mapping[PeerId, Envelope]]:
        slots = {ask.slot for ask in asks.values()}
        assert len(slots) == 1, "members are in different places: lockstep is broken"
        said: dict[PeerId, Envelope] = {}
        for last in (False, True):
            before = MappingProxyType(dict(said))
            for sender in sorted(peer for peer, ask in asks.items() if ask.last == last):
                envelope = asks[sender].choose(before)
                said |= {sender: envelope} if envelope is not None else {}
        first, slot = _first(asks), slots.pop()
        for sender, envelope in said.items():
            if sender != first:  # the header is all that is signed but the digest, which follows from the payload
                self.announced_bytes += len(signed_bytes(slot, sender, Digest(b""))) + len(wire_bytes(envelope))
        everyone = MappingProxyType({sender: said[sender] for sender in sorted(said)})
        return dict.fromkeys(asks, everyone)

    def _scatter(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, dict[int, dict[PeerId, ProvenPart]]]:
        received: dict[PeerId, dict[int, dict[PeerId, ProvenPart]]] = {peer: {} for peer in asks}
        for sender, ask in asks.items():
            for part, (owner, proven) in ask.blobs.parts.items():
                if owner in received:  # else it is gone, and nobody knows yet
                    received[owner].setdefault(part, {})[sender] = self._handed(proven)
        first = min((owner for owner, parts in received.items() if parts), default=None)
        for proven_parts in received[first].values() if first is not None else ():
            self.bulk_bytes += sum(_part_bytes(proven) for sender, proven in proven_parts.items() if sender != first)
        return received

    def _gather(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, dict[int, bytes]]:
        by_digest = {blob.digest: blob for ask in asks.values() for blob in ask.blobs.mine.values()}
        first = _first(asks)
        own = {blob.digest for blob in asks[first].blobs.mine.values()}
        fetched = [
            by_digest[digest] for digest in asks[first].blobs.wanted.values() if digest in by_digest.keys() - own
        ]
        self.bulk_bytes += sum(map(len, fetched))
        return {
            peer: {
                part: by_digest[digest] if self._share else by_digest[digest].anew()
                for part, digest in ask.blobs.wanted.items()
                if digest in by_digest
            }
            for peer, ask in asks.items()
        }

    def _disclose(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, dict[Showing, Mapping[PeerId, ProvenPart]]]:
        shown: dict[PeerId, dict[Showing, Mapping[PeerId, ProvenPart]]] = {
            peer: {
                (part, owner): {
                    whose: self._handed(proven)
                    for whose, proven in (asks[owner].blobs.mine.get(part, {}) if owner in asks else {}).items()
                }
                for part, owner in ask.blobs.wanted
            }
            for peer, ask in asks.items()
        }
        received = shown[min(asks)].values()
        self.bulk_bytes += sum(_part_bytes(proven) for proven_parts in received for proven in proven_parts.values())
        return shown

    def _forward(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, dict[Delivery, list[ProvenPart]]]:
        forwarded: dict[PeerId, dict[Delivery, list[ProvenPart]]] = {peer: {} for peer in asks}
        for ask in asks.values():
            for delivery, (receivers, proven) in ask.blobs.parts.items():
                for receiver in forwarded.keys() & receivers:
                    forwarded[receiver].setdefault(delivery, []).append(self._handed(proven))
        return forwarded

    def _handed(self, proven: ProvenPart) -> ProvenPart:
        return proven if self._share else ProvenPart(proven.blob.anew(), proven.path)


def _first(asks: Mapping[PeerId, Any]) -> PeerId:
    """The member whose bytes are counted."""
    return min(asks, key=lambda peer: (asks[peer].observes, peer))


def _part_bytes(proven: ProvenPart) -> int:
    return len(proven.blob) + sum(map(len, proven.path))


# Honest peers whose machines stop: each at one moment of one step, for a while or for good.

_CALLS = 8  # a quiet step has seven calls of the channel, one with a trial nine: every phase and what is between them


class PowerCutError(CannotGoOnError):
    """The machine stopped."""


@dataclass(frozen=True)
class DropOut:
    """The peer stops with its `call`-th call of the channel in this step, or with its first call afterwards."""

    step: int
    call: int
    down: float | None = None  # for so many seconds; None is for good
    journal: bool = True  # whether it still knows afterwards what it signed
    amid: float = 0.0  # so many seconds after the call began; 0 is just before


def draw_drop_outs(seed: Seed, candidates: Sequence[PeerId], count: int, steps: int) -> dict[PeerId, DropOut]:
    """So many of them, each at a random moment."""
    draw = stream(seed, "drop-outs")
    chosen = [candidates[k] for k in draw.sample(len(candidates), count)]
    return {peer: DropOut(int(draw.integers(steps, 1)[0]), int(draw.integers(_CALLS, 1)[0])) for peer in chosen}


class DroppingChannel(ForwardingChannel):
    """A channel until the power goes: at once, or as `soon` sees to, which is told in how many seconds."""

    def __init__(self, channel: Channel, drop_out: DropOut, soon: Callable[[float], None] | None = None) -> None:
        super().__init__(channel)
        self.drop_out = drop_out
        self._soon = soon
        self._step = self._calls = -1

    def _count(self, slot: Slot) -> None:
        self._calls = self._calls + 1 if slot.step == self._step else 0
        self._step = slot.step
        if (self._step, self._calls) < (self.drop_out.step, self.drop_out.call):
            return
        if self._soon is None or not self.drop_out.amid:
            raise PowerCutError(f"stopped in step {self._step}")
        self._soon(self.drop_out.amid)

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        self._count(slot)
        return await super().announce(slot, message, view)

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        self._count(slot)
        return await super().exchange(slot, blobs, view)
