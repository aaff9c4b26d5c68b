"""The protocol's channel on a network that delays, loses and lies: announcements agreed, blobs checked on arrival.

One peer's end of it. It asks for three things from outside (`Line`): the time, a way to send a frame to one peer, and the next
frame that arrives before a deadline. Simulation and network both bring their own.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from troth.crypto import Context, Digest, Identity, PeerId, Signature
from troth.protocol.announce import Announcement, Decision, Timing
from troth.protocol.channel import Doubles, PartParcels
from troth.protocol.frames import (
    AGREEMENT,
    BlobSent,
    BlobWanted,
    Frame,
    Packet,
    PartSent,
    PartShown,
    RecordSigned,
)
from troth.protocol.messages import MOST_MEMBERS, Announced, Envelope, Malformed, Message, Phase, seal
from troth.protocol.parts import Parcel
from troth.protocol.primitives import Primitives


class Line(Protocol):
    """What a peer needs from the outside world, and all of it."""

    def now(self) -> float: ...

    def send(self, to: PeerId, packet: Packet) -> None: ...

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        """The next packet, and who sent it; None if nothing came until then."""
        ...


@dataclass(frozen=True)
class Pace:
    """How long things may take, agreed on by the run (seconds)."""

    delta: float = 1.0  # for a frame between honest peers
    compute: float = 1.0  # for a gradient, an audit, a trial
    bulk: float = 1.0  # for blobs on their way


class AgreedChannel:
    """One member's end."""

    def __init__(self, identity: Identity, line: Line, pace: Pace, tools: Primitives) -> None:
        self._identity = identity
        self._me = identity.peer
        self._line = line
        self._pace = pace
        self._tools = tools
        self._last: Announcement | None = None  # the one that ended last: deadlines count from its end
        self._entered: frozenset[PeerId] = frozenset()
        self._awaited: Mapping[int, frozenset[PeerId]] = {}
        self._members: tuple[PeerId, ...] = ()
        self._silent: dict[int, set[PeerId]] = defaultdict(set)  # by step: whom an announcement missed (SPEC Q7)
        self._doubles: dict[int, dict[PeerId, tuple[Context, Envelope, Envelope]]] = defaultdict(dict)
        self._running: tuple[Context, Announcement] | None = None
        self._early: dict[Context, list[tuple[PeerId, Frame]]] = defaultdict(list)
        self._early_of: Counter[PeerId] = Counter()  # how many frames of each are kept for announcements not yet begun
        self._blobs_of: Counter[PeerId] = Counter()
        self._parts: dict[Context, dict[int, dict[PeerId, Parcel]]] = defaultdict(lambda: defaultdict(dict))
        self._shown: dict[Context, dict[tuple[PeerId, int], dict[PeerId, Parcel]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        self._blobs: dict[Digest, bytes] = {}
        self._signatures: dict[Context, dict[PeerId, Signature]] = defaultdict(dict)

    # Announcements

    def enter(self, members: frozenset[PeerId], awaited: Mapping[int, frozenset[PeerId]]) -> None:
        self._entered, self._awaited = members, awaited

    async def announce(self, context: Context, message: Message) -> Mapping[PeerId, Announced]:
        running = self._begin(context)
        running.say(seal(self._identity, context, message), self._line.now())
        return await self._finish(context, running)

    def _begin(self, context: Context) -> Announcement:
        self._members = tuple(sorted(self._entered - self._silent[context.step]))
        now = self._line.now()
        start = now if self._last is None or self._last.ends is None else self._last.ends
        running = Announcement(context, self._identity, self._members, self._timing(context, start), self._tools)
        self._running = (context, running)
        for sender, frame in self._early.pop(context, []):
            self._early_of[sender] -= 1
            self._dispatch(sender, Packet(context, frame))
        return running

    async def _finish(self, context: Context, running: Announcement) -> Mapping[PeerId, Announced]:
        decision = await self._until_decided(running)
        self._silent[context.step] |= set(self._members) - decision.said.keys()
        self._doubles[context.step] |= {peer: (context, *pair) for peer, pair in decision.twice.items()}
        self._last = running
        opened = {peer: self._tools.open(context, peer, envelope) for peer, envelope in decision.said.items()}
        return {peer: said for peer, said in sorted(opened.items()) if not isinstance(said, Malformed)}

    def doubles(self, step: int) -> Doubles:
        return dict(self._doubles[step])

    def _timing(self, context: Context, start: float) -> Timing:
        pace = self._pace
        exchange = 2 * pace.delta + pace.bulk  # begun up to delta later elsewhere, and on its way for delta and more
        allowance = {
            Phase.COMMIT: exchange + pace.compute,  # the record's signatures, then the gradient
            Phase.CLIP: 3 * exchange,  # parts; and disputed ones, handed round and passed on
            Phase.REVEAL: exchange,
            Phase.REPORT: exchange,
            Phase.ACCUSE: pace.compute,
            Phase.VOTE: exchange + pace.compute,
        }[Phase(context.phase)]
        return Timing(start, allowance, pace.delta)

    async def _until_decided(self, running: Announcement) -> Decision:
        while running.decision is None:
            self._tick()
            if running.deadline is not None:
                await self._hear_one(running.deadline)
        self._tick()  # hands on what decided
        return running.decision

    def _tick(self) -> None:
        if self._running is not None:
            context, running = self._running
            running.tick(self._line.now())
            self._flush(context, running)

    def _flush(self, context: Context, running: Announcement) -> None:
        for frame in running.take():
            for peer in self._members:
                if peer != self._me:
                    self._line.send(peer, Packet(context, frame))

    # Frames

    async def _hear_one(self, until: float) -> bool:
        heard = await self._line.receive(until)
        if heard is not None:
            self._dispatch(*heard)
        return heard is not None

    async def _wait(self, until: float, enough: Callable[[], bool]) -> None:
        """Hear frames until there is enough or it is too late."""
        while not enough() and self._line.now() < until:
            await self._hear_one(until)

    def _dispatch(self, sender: PeerId, packet: Packet) -> None:
        """Bounded, and filed by place; nothing is believed yet."""
        place, frame = packet.place, packet.frame
        if not self._may_come(place):
            return
        if isinstance(frame, AGREEMENT):
            if self._running is not None and self._running[0] == place:
                running = self._running[1]
                running.hear(sender, frame, self._line.now())
                self._flush(place, running)
            elif self._key(place) > self._newest and self._early_of[sender] < 8 + 4 * len(self._entered):
                self._early_of[sender] += 1
                self._early[place].append((sender, frame))
            return
        match frame:
            case PartSent():
                self._parts[place][frame.part].setdefault(sender, Parcel(frame.blob, tuple(map(Digest, frame.path))))
            case BlobSent():
                if self._blobs_of[sender] < 2 * MOST_MEMBERS:
                    self._blobs_of[sender] += 1
                    self._blobs.setdefault(self._tools.digest(frame.blob), frame.blob)
            case BlobWanted():
                blob = self._blobs.get(Digest(frame.digest))
                if blob is not None:
                    self._line.send(sender, Packet(place, BlobSent(blob)))
            case PartShown():
                parcel = Parcel(frame.blob, tuple(map(Digest, frame.path)))
                self._shown[place][sender, frame.part].setdefault(PeerId(frame.contributor), parcel)
            case RecordSigned():
                self._signatures[place].setdefault(sender, Signature(frame.signature))

    def _may_come(self, place: Context) -> bool:
        """Only places of this step and the next: else one liar could fill what is kept for others with invented ones."""
        if self._running is None:
            return place.step <= 1
        now = self._running[0]
        same = place.run == now.run and place.incarnation == now.incarnation
        return same and now.step <= place.step <= now.step + 1 and 0 <= place.attempt <= 4 * len(self._entered)

    @staticmethod
    def _key(place: Context) -> tuple[int, int, int]:
        return place.step, place.attempt, place.phase

    @property
    def _newest(self) -> tuple[int, int, int]:
        return self._key(self._running[0]) if self._running is not None else (-1, 0, 0)

    # Blobs

    async def scatter(self, context: Context, parcels: Mapping[int, tuple[PeerId, Parcel]]) -> PartParcels:
        mine, expected = self._parts[context], self._awaited
        for part, (owner, parcel) in parcels.items():
            if owner == self._me:
                mine[part][self._me] = parcel
            else:
                self._line.send(owner, Packet(context, PartSent(part, parcel.blob, parcel.path)))
        number = 3 if context.phase == Phase.REVEAL else 1  # disputed parts are passed on after they were handed round
        await self._wait(
            self._due(number), lambda: all(mine[part].keys() >= senders for part, senders in expected.items())
        )
        return {
            part: {peer: mine[part][peer] for peer in senders & mine[part].keys()} for part, senders in expected.items()
        }

    async def gather(
        self, context: Context, mine: Mapping[int, bytes], wanted: Mapping[int, Digest]
    ) -> Mapping[int, bytes]:
        for blob in mine.values():
            self._blobs[self._tools.digest(blob)] = blob
        if context.phase == Phase.CLIP:
            self._to_all(context, [BlobSent(blob) for blob in mine.values()])
        else:  # somebody lacks what most hold: ask everyone
            self._to_all(context, [BlobWanted(digest) for digest in wanted.values()])
        await self._wait(self._due(), lambda: all(digest in self._blobs for digest in wanted.values()))
        return {part: self._blobs[digest] for part, digest in wanted.items() if digest in self._blobs}

    async def lay_open(
        self, context: Context, mine: PartParcels, wanted: Mapping[int, PeerId], count: int
    ) -> PartParcels:
        shown = self._shown[context]
        for part, parcels in mine.items():
            shown[self._me, part] = dict(parcels)
            frames = [PartShown(part, peer, parcel.blob, parcel.path) for peer, parcel in parcels.items()]
            self._to_all(context, frames)
        number = 2 if context.phase == Phase.CLIP else 1
        await self._wait(
            self._due(number), lambda: all(len(shown[owner, part]) >= count for part, owner in wanted.items())
        )
        return {part: dict(shown[owner, part]) for part, owner in wanted.items()}

    async def sign_record(self, context: Context, signature: Signature) -> Mapping[PeerId, Signature]:
        collected = self._signatures[context]
        collected[self._me] = signature
        self._to_all(context, [RecordSigned(signature)])
        await self._wait(self._due(), lambda: collected.keys() >= set(self._members))
        self._forget(context.step)
        return dict(collected)

    def _due(self, exchanges: int = 1) -> float:
        """When the first, second … exchange of blobs since the last announcement is due."""
        assert self._last is not None
        assert self._last.ends is not None, "blobs follow an announcement"
        return self._last.ends + exchanges * (2 * self._pace.delta + self._pace.bulk)

    def _to_all(self, context: Context, frames: Iterable[Frame]) -> None:
        for frame in frames:
            for peer in self._members:
                if peer != self._me:
                    self._line.send(peer, Packet(context, frame))

    def _forget(self, step: int) -> None:
        """Nothing grows from step to step."""
        for kept in (self._parts, self._shown, self._signatures, self._early):
            for place in [place for place in kept if place.step < step]:
                del kept[place]
        for by_step in (self._silent, self._doubles):
            for old in [old for old in by_step if old < step]:
                del by_step[old]
        self._blobs.clear()
        self._blobs_of.clear()
        self._early_of = Counter(sender for frames in self._early.values() for sender, _ in frames)
