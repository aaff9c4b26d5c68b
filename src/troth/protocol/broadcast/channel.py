"""The protocol's channel on a network that delays, loses and lies: announcements agreed, blobs checked on arrival.

One peer's end of it. It asks for three things from outside (`Line`): the time, a way to send a frame to one peer, and the next
frame that arrives before a deadline. Simulation and network both bring their own.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol, TypeVar

from troth.crypto import Context, Digest, Identity, PeerId
from troth.protocol.broadcast.announcement import Announcement, Decision, Timing
from troth.protocol.broadcast.blobs import Blobs
from troth.protocol.broadcast.catch_up_server import Gate
from troth.protocol.broadcast.early_frames import Room, Shelf
from troth.protocol.broadcast.observed import Sighting
from troth.protocol.broadcast.signed_slots import Journal, MemoryJournal
from troth.protocol.broadcast.timeouts import Pace, Stopwatch
from troth.protocol.core.channel import Blame, Delivery, Doubles, Entry, PartParcels, Showing
from troth.protocol.core.errors import StalledError
from troth.protocol.core.parts import Parcel
from troth.protocol.wire.frames import (
    AGREEMENT,
    Begun,
    BlobSent,
    BlobWanted,
    Busy,
    Certificate,
    Chained,
    Decided,
    Frame,
    Knock,
    Outside,
    Packet,
    PartSent,
    PartShown,
    Relayed,
    StateShown,
    StateWanted,
    SyncShown,
    SyncWanted,
    Value,
    View,
    Waiting,
)
from troth.protocol.wire.messages import (
    ATTEMPTS_PER_MEMBER,
    Announced,
    Commit,
    Envelope,
    Knocking,
    Malformed,
    Measured,
    Message,
    Phase,
    most_bytes,
    said_as,
    seal,
)
from troth.protocol.wire.primitives import Primitives

R = TypeVar("R", Announcement, Sighting)
K = TypeVar("K")


class Line(Protocol):
    """What a peer needs from the outside world, and all of it."""

    def now(self) -> float: ...

    def send(self, to: PeerId, packet: Packet) -> None: ...

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        """The next packet, and who sent it; None if nothing came until then, or when it has changed who is gone."""
        ...

    def gone(self) -> frozenset[PeerId]:
        """Who was connected, is not any more, and cannot be reached at once (SPEC Q9)."""
        ...


class AgreedChannel:
    """One member's end."""

    def __init__(
        self,
        identity: Identity,
        line: Line,
        bounds: Pace,
        tools: Primitives,
        journal: Journal | None = None,
        *,
        looks_on: bool = False,
    ) -> None:
        self._identity = identity
        self._journal = journal if journal is not None else MemoryJournal()
        self._looks_on = looks_on  # hears everything and says nothing (SPEC B2)
        self._me = identity.peer
        self._line = line
        self.bounds = bounds
        self.pace = self.next_pace = bounds.slowest  # what holds now, and from the next Commit on (SPEC Q8)
        self._stopwatch = Stopwatch()
        self._ended: dict[
            Context, Announcement
        ] = {}  # in this step, and those of the last one that are still to be proved
        self._tools = tools
        self._last: Announcement | Sighting | None = None  # the one that ended last: deadlines count from its end
        self._entry = Entry(frozenset())
        self._step = -1  # that was begun last
        self._relayed: dict[PeerId, set[Frame]] = defaultdict(set)  # in this announcement
        self._blame = Blame()
        self.gate = Gate(self._send, tools)
        self._began_with = 0  # members at the start of the step
        self._quorum = 0  # at least more than half of the members at the start of the step
        self._to_prove: dict[Context, tuple[frozenset[PeerId], int]] = {}  # to whom, and how many have to sign
        self._left: set[PeerId] = set()  # who waits for this step to be made again
        self._members: tuple[PeerId, ...] = ()
        self._silent: dict[int, set[PeerId]] = defaultdict(set)  # by step: whom an announcement missed (SPEC Q7)
        self._doubles: dict[int, dict[PeerId, tuple[Context, Envelope, Envelope]]] = defaultdict(dict)
        self._running: tuple[Context, Announcement | Sighting] | None = None
        self._room = Room(bounds.room)  # for everything that others put here
        self._shelf = Shelf(self._room)  # packets for announcements that have not begun here
        self._needed: int | None = None  # the step from which on somebody who comes back needs to know everything
        self._parts: dict[Context, dict[int, dict[PeerId, Parcel]]] = defaultdict(lambda: defaultdict(dict))
        self._shown: dict[Context, dict[Showing, dict[PeerId, Parcel]]] = defaultdict(lambda: defaultdict(dict))
        self._blobs = Blobs(self._send, tools, self._room)
        self.write_down: Callable[[Context, Mapping[PeerId, Announced]], None] = lambda _place, _said: None

    # Announcements

    def enter(self, entry: Entry) -> None:
        self._entry = entry
        self._begin_step(entry.step)  # before it is asked how long things took in the last one

    @property
    def waits_for(self) -> tuple[Context, frozenset[PeerId]] | None:
        """Where this peer is, and who has not spoken there yet; for people who look at it."""
        if self._running is None:
            return None
        context, running = self._running
        heard = running.heard if isinstance(running, Announcement) and running.decision is None else self._members
        return context, frozenset(self._members) - frozenset(heard)

    async def announce(self, context: Context, message: Message) -> Mapping[PeerId, Announced]:
        if self._looks_on:
            timing = self._open(context)
            sighting = Sighting(context, self._members, self._voices, timing, self._tools, self._quorum or None)
            return await self._finish(context, self._run(context, sighting))
        running = self._begin(context)
        self._journal.claim(context)  # before it is signed: a slot is signed once, whatever happens (SPEC B1)
        running.say(seal(self._identity, context, message), self._line.now())
        return await self._finish(context, running)

    def _begin(self, context: Context) -> Announcement:
        timing, apart = self._open(context), self._entry.apart.get(self._me, frozenset())
        numbers = self._entry.liars, self._quorum or None
        return self._run(
            context, Announcement(context, self._identity, self._members, timing, self._tools, apart, *numbers)
        )

    @property
    def _voices(self) -> int:
        """So many are not all liars."""
        return self._entry.liars + 1 if self._entry.quorum else self._quorum

    def _open(self, context: Context) -> Timing:
        """Who takes part, and when it began; with Commit another step, and another pace."""
        if context.phase == Phase.COMMIT:
            self._begin_step(context.step)
            self.pace = self.next_pace
        self._members = tuple(sorted(self._entry.members - self._silent[context.step]))
        if context.phase == Phase.COMMIT:
            self._began_with = len(self._entry.members)
            self._quorum = max(len(self._entry.members) // 2 + 1, self._entry.liars + 1, self._entry.quorum)
            self._left.clear()
        now = self._line.now()
        return self._timing(context, now if self._last is None or self._last.ends is None else self._last.ends)

    def _run(self, context: Context, running: R) -> R:
        self._running = (context, running)
        self._relayed.clear()
        self._take_up(context)
        return running

    def _take_up(self, context: Context) -> None:
        """What came for this place before this peer was there."""
        for sender, packet in self._shelf.take(context):
            self._dispatch(sender, packet)

    async def _finish(self, context: Context, running: Announcement | Sighting) -> Mapping[PeerId, Announced]:
        decision = await self._until_decided(running)
        self._tell_watchers(context, decision)
        self._silent[context.step] |= set(self._members) - decision.said.keys()
        self._doubles[context.step] |= {peer: (context, *pair) for peer, pair in decision.twice.items()}
        self._last = running
        self._blame = Blame(
            self._blame.unheard | running.blame.unheard, self._blame.incomplete | running.blame.incomplete
        )
        opened = {peer: self._tools.open(context, peer, envelope) for peer, envelope in decision.said.items()}
        agreed = {peer: said for peer, said in sorted(opened.items()) if not isinstance(said, Malformed)}
        if context.phase == Phase.COMMIT:
            self.next_pace = self.bounds.after([said_as(said, Commit).took for said in agreed.values()])
        if isinstance(running, Announcement):
            self._ended[context] = running
            self._to_prove[context] = (self.gate.watchers, self._voices)
            self._show_proof(context, running)
        self.write_down(context, agreed)
        return agreed

    def _tell_watchers(self, context: Context, decision: Decision) -> None:
        if self.gate.watchers and decision.said:  # nothing: the others went on without this peer
            said = {bytes(peer): envelope for peer, envelope in decision.said.items()}
            twice = {bytes(peer): pair for peer, pair in decision.twice.items()}
            self.send_each(context, sorted(self.gate.watchers), Decided(said, twice))

    def _show_proof(self, context: Context, ended: Announcement) -> None:
        """To those who look on, once: with this they need nobody else's word (SPEC B2)."""
        if context not in self._to_prove:
            return
        watchers, voices = self._to_prove[context]
        if context.step == self._entry.step:
            watchers |= self.gate.watchers  # some may have come since
        if watchers and (proof := ended.proof(voices)) is not None:
            del self._to_prove[context]
            self.send_each(context, sorted(watchers), proof)

    def doubles(self, step: int) -> Doubles:
        return dict(self._doubles[step])

    def blame(self) -> Blame:
        blame, self._blame = self._blame, Blame()
        return blame

    def took(self) -> Measured | None:
        self._stopwatch.back_at_line(self._line.now(), self._entry.audits)
        return self._stopwatch.took()

    def _timing(self, context: Context, start: float) -> Timing:
        pace = self.pace
        exchange = 2 * pace.delta + pace.bulk  # begun up to delta later elsewhere, and on its way for delta and more
        allowance = {
            Phase.COMMIT: pace.delta + pace.compute,  # the gradient
            Phase.CLIP: 3 * exchange,  # parts; and disputed ones, handed round and passed on
            Phase.REVEAL: exchange,
            Phase.CONFIRM: exchange,  # what Reveal left undecided is asked for from everyone
            Phase.REPORT: exchange,
            Phase.ACCUSE: pace.compute * max(1, self._entry.audits),
            Phase.VOTE: exchange + self._more_bulk + pace.compute * max(1, self._entry.audits),
            Phase.RECORD: 0.0,
        }[Phase(context.phase)]
        relayed = any(
            peer in self._members and others & set(self._members) for peer, others in self._entry.apart.items()
        )
        return Timing(start, allowance, pace.delta, relayed)

    async def _until_decided(self, running: Announcement | Sighting) -> Decision:
        self._tick()
        while running.decision is None:
            assert running.deadline is not None
            deadline = running.deadline
            if not await self._hear_one(deadline) or self._line.now() >= deadline:
                self._tick()
        self._tick()  # hands on what decided
        return running.decision

    def _tick(self) -> None:
        if self._running is not None:
            context, running = self._running
            self._look_round(running)
            running.tick(self._line.now())
            self._flush(context, running)

    def _look_round(self, running: Announcement | Sighting) -> None:
        if isinstance(running, Announcement) and running.decision is None:
            running.broken_off(self._line.gone())

    def _flush(self, context: Context, running: Announcement | Sighting) -> None:
        if frames := running.take():
            self._to_all(context, frames)

    def _pass_on(self, sender: PeerId, place: Context, frame: Frame) -> None:
        """To whom the sender does not reach: its values and views, two of each (SPEC F2)."""
        apart, relayed = self._entry.apart.get(sender), self._relayed[sender]
        running = self._running[1] if self._running is not None else None
        if not apart or not isinstance(frame, Value | View) or not isinstance(running, Announcement):
            return
        if (
            frame in relayed
            or sum(type(old) is type(frame) for old in relayed) == 2
            or not running.is_of(sender, frame)
        ):
            return
        relayed.add(frame)
        self.send_each(place, sorted(apart & set(self._members)), Relayed(sender, frame))

    # Frames

    async def _hear_one(self, until: float) -> bool:
        self._stopwatch.back_at_line(self._line.now(), self._entry.audits)
        heard = await self._line.receive(until)
        self._stopwatch.left_line(self._line.now())
        if heard is not None:
            self._dispatch(*heard)
        if self._quorum and len(self._left) >= self._quorum:
            raise StalledError(f"{len(self._left)} members have left the step, and wait for the others")
        return heard is not None

    async def _wait(self, until: float, enough: Callable[[], bool]) -> None:
        """Hear frames until there is enough or it is too late."""
        while not enough() and self._line.now() < until:
            await self._hear_one(until)

    async def _wait_for_blobs(self, until: float, missing: Callable[[], int], of: int) -> None:
        """Of everybody: when more than half are there is worth knowing, whatever liars keep back (SPEC Q8)."""
        began = self._line.now()
        await self._wait(until, lambda: 2 * missing() < max(1, of))
        self._stopwatch.carried(self._line.now() - began)
        await self._wait(until, lambda: not missing())

    def _dispatch(self, sender: PeerId, packet: Packet) -> None:
        """Bounded, and filed by place; nothing is believed yet."""
        place, frame = packet.place, packet.frame
        if isinstance(frame, SyncWanted | StateWanted | Knock):
            self.gate.hear(sender, place, frame, self._running[0].step if self._running is not None else -1)
            return
        if isinstance(frame, Waiting | Busy | Begun):
            if isinstance(frame, Waiting) and self._running is not None:
                self._hear_waiting(sender, place, frame, self._running[0])
            return
        if not self._may_speak(sender):
            return
        if isinstance(frame, BlobWanted):
            most, may_come = 4 * len(self._entry.members), self._may_come(place)
            self._blobs.hand_out(sender, place, Digest(frame.digest), most=most, may_come=may_come)
            return
        proves = isinstance(frame, Certificate) and place in self._ended
        if not (self._may_come(place) or proves) or not self._matters(packet):
            return
        if self._running is None and self._looks_on:
            self._keep_for_later(sender, packet)
            return
        if isinstance(frame, AGREEMENT):
            if self._running is not None and self._running[0] == place:
                running = self._running[1]
                self._pass_on(sender, place, frame)
                self._look_round(running)
                running.hear(sender, frame, self._line.now())
                self._flush(place, running)
            elif proves:
                self._ended[place].hear(sender, frame, self._line.now())  # it tells how long that takes
            elif self._key(place) > self._newest:
                self._shelf.put(sender, packet, self._most_early)
            if proves:
                self._show_proof(
                    place, self._ended[place]
                )  # as soon as there is one, also before the next announcement
            return
        self._keep(sender, packet)

    def _keep(self, sender: PeerId, packet: Packet) -> None:
        """Blobs and signatures, each once, as far as the sender has room."""
        place, frame = packet.place, packet.frame
        if isinstance(frame, BlobSent):
            self._blobs.put_from(sender, place, frame.blob, packet.size)
            return
        if not self._room.has(sender, packet.size):
            return  # before anything is looked up: even an empty table takes up memory
        match frame:
            case PartSent():
                parcel = Parcel(frame.blob, tuple(map(Digest, frame.path)))
                kept = _put(self._parts[place][frame.part], sender, parcel)
            case PartShown():
                parcel = Parcel(frame.blob, tuple(map(Digest, frame.path)))
                kept = _put(self._shown[place][frame.part, sender], PeerId(frame.contributor), parcel)
            case _:
                kept = False
        if kept:
            self._room.take(sender, packet.size, place.step)

    def _matters(self, packet: Packet) -> bool:
        """What nobody here will ever look at takes up nobody's room."""
        place, frame = packet.place, packet.frame
        said = frame.frame if type(frame) is Relayed else frame  # exact types: this is asked of every packet
        if type(said) is Value or type(said) is Chained:
            # Too long for any message of its phase: for every honest peer alike, so it was never said.
            return len(said.envelope.payload) <= most_bytes(place.phase) and not self._only_looked_at(place)
        if type(said) is View:
            return not self._only_looked_at(place)
        if type(said) is PartSent or type(said) is PartShown:
            return not self._abandoned(place)
        if type(said) is Decided:
            return self._looks_on  # members decide for themselves
        return type(said) is BlobSent or type(said) is Certificate

    def _abandoned(self, place: Context) -> bool:
        """An attempt that was given up: its parts are sent again, if anybody still needs them."""
        return self._running is not None and self._key(place)[:2] < self._newest[:2]

    def _only_looked_at(self, place: Context) -> bool:
        """A step that this peer has no say in: of its announcements it needs what members decided, and no more."""
        return self._looks_on and self._running is not None and place.step == self._running[0].step

    def _hear_waiting(self, sender: PeerId, place: Context, frame: Waiting, here: Context) -> None:
        """It is in no step (SPEC B5). Who only looks on stops looking when more than half have left the step. Members do not
        leave on anybody's word: liars would say so to some of them, and go on with the rest."""
        if not self._looks_on and frame.step <= here.step:
            self._send(sender, place, Busy(here.step))
        if self._looks_on and frame.step == here.step and frame.incarnation > here.incarnation:
            self._left |= {sender} & self._entry.members

    def _keep_for_later(self, sender: PeerId, packet: Packet) -> None:
        """While it is not known yet which step to look on from: of each sender its last two steps, then all from that one on."""
        first = packet.place.step - 1 if self._needed is None else self._needed
        if packet.place.step >= first:
            self._shelf.drop_before(first, sender)
            self._shelf.put(sender, packet, self._most_early)

    def look_on_from(self, step: int) -> None:
        self._needed = step

    @property
    def _most_early(self) -> int:
        """Frames of one sender that may wait."""
        steps = 8 if self._looks_on else 1  # that somebody may be behind
        return steps * (8 + 4 * len(self._entry.members))

    @property
    def kept_bytes(self) -> int:
        """What others have put here: early packets, parts, blobs and signatures, by their length on the line."""
        return self._room.kept_bytes

    def _may_speak(self, sender: PeerId) -> bool:
        """Strangers may ask and knock, no more: keys cost nothing."""
        expected = sender in self._entry.members or sender in self._entry.admitted
        return not self._entry.members or expected or self.gate.admits(sender)

    def _may_come(self, place: Context) -> bool:
        """Only places of this step and the next: else one liar could fill what is kept for others with invented ones."""
        if self._running is None:
            first = self._needed or 0
            return self._looks_on or place.step <= first + 1  # who comes back does not know yet which step it will be
        now = self._running[0]
        same = place.run == now.run and place.incarnation == now.incarnation
        most = ATTEMPTS_PER_MEMBER * max(self._began_with, len(self._entry.members))
        return same and now.step <= place.step <= now.step + 1 and 0 <= place.attempt < most

    @staticmethod
    def _key(place: Context) -> tuple[int, int, int]:
        return place.step, place.attempt, place.phase

    @property
    def _newest(self) -> tuple[int, int, int]:
        return self._key(self._running[0]) if self._running is not None else (-1, 0, 0)

    # Blobs

    async def scatter(self, context: Context, parcels: Mapping[int, tuple[PeerId, Parcel]]) -> PartParcels:
        mine, expected = self._parts[context], self._entry.awaited
        for part, (owner, parcel) in parcels.items():
            if owner == self._me:
                mine[part][self._me] = parcel
            else:
                self._send(owner, context, PartSent(part, parcel.blob, parcel.path))
        otherwise = self._entry.apart.get(self._me, frozenset())  # those hand it round
        directly = {part: senders - otherwise for part, senders in expected.items()}
        await self._wait_for_blobs(
            self._due(),
            lambda: sum(len(senders - mine[part].keys() - self._line.gone()) for part, senders in directly.items()),
            sum(map(len, directly.values())),
        )
        return {
            part: {peer: mine[part][peer] for peer in sorted(senders & mine[part].keys())}
            for part, senders in expected.items()
        }

    async def gather(
        self, context: Context, mine: Mapping[int, bytes], wanted: Mapping[int, Digest]
    ) -> Mapping[int, bytes]:
        for blob in mine.values():
            self._blobs.put(context, blob)
        if context.phase == Phase.CLIP:
            self._to_all(context, [BlobSent(blob) for blob in mine.values()])
        for part, digest in sorted(wanted.items()):  # what does not come by itself
            if digest not in self._blobs:
                known = self._entry.far.get(part, frozenset()) if context.phase == Phase.CLIP else self._members
                self.send_each(context, sorted(known), BlobWanted(digest))
        if not (
            self._looks_on and context.phase == Phase.CLIP
        ):  # an onlooker has no time to lose: it asks after Reveal
            await self._wait_for_blobs(
                self._due(), lambda: sum(digest not in self._blobs for digest in wanted.values()), len(wanted)
            )
        return {part: self._blobs[digest] for part, digest in wanted.items() if digest in self._blobs}

    async def lay_open(
        self, context: Context, mine: PartParcels, wanted: Collection[Showing], count: int
    ) -> Mapping[Showing, Mapping[PeerId, Parcel]]:
        shown = self._shown[context]
        for part, parcels in mine.items():
            shown[part, self._me] = dict(parcels)
            frames = [PartShown(part, peer, parcel.blob, parcel.path) for peer, parcel in parcels.items()]
            self._to_all(context, frames)
        due = self._due(2) if context.phase == Phase.CLIP else self._due() + self._more_bulk
        await self._wait(due, lambda: all(len(shown[showing]) >= count for showing in wanted))
        return {showing: dict(shown[showing]) for showing in wanted}

    async def pass_on(
        self,
        context: Context,
        parcels: Mapping[Delivery, tuple[PeerId, Parcel]],
        wanted: Collection[Delivery],
        fits: Callable[[Delivery, Parcel], bool],
    ) -> Mapping[Delivery, Parcel]:
        shown = self._shown[context]
        for (part, contributor), (owner, parcel) in sorted(parcels.items(), key=lambda item: item[0]):
            if owner != self._me and not self._looks_on:
                self._send(owner, context, PartShown(part, contributor, parcel.blob, parcel.path))
        found: dict[Delivery, Parcel] = {}

        def all_found() -> bool:
            for part, contributor in set(wanted) - found.keys():
                offered = [
                    said[contributor] for (about, _), said in shown.items() if about == part and contributor in said
                ]
                right = [parcel for parcel in offered if fits((part, contributor), parcel)]
                found.update({(part, contributor): right[0]} if right else {})
            return len(found) == len(wanted)

        await self._wait(self._due(3), all_found)
        return found

    @property
    def _more_bulk(self) -> float:
        """For each part that is laid open beside the first: all of them at once fit through no line that one does (SPEC V3)."""
        return self.pace.bulk * max(0, self._entry.disputed - 1)

    def _due(self, exchanges: int = 1) -> float:
        """When the first, second … exchange of blobs since the last announcement is due."""
        assert self._last is not None
        assert self._last.ends is not None, "blobs follow an announcement"
        return self._last.ends + exchanges * (2 * self.pace.delta + self.pace.bulk)

    def _send(self, to: PeerId, place: Context, frame: Frame) -> None:
        self._line.send(to, Packet(place, frame))

    def send_each(self, place: Context, peers: Iterable[PeerId], frame: Frame) -> None:
        packet = Packet(place, frame)  # one, so that it is encoded once
        for peer in peers:
            if peer != self._me:
                self._line.send(peer, packet)

    def _to_all(self, context: Context, frames: Iterable[Frame]) -> None:
        """To all members; what onlookers need also to them."""
        if self._looks_on:
            return
        for frame in frames:
            watched = isinstance(frame, Certificate | BlobSent)
            self.send_each(context, (*self._members, *(sorted(self.gate.watchers) if watched else ())), frame)

    # For oneself, when one comes back (SPEC B2)

    def knocks(self, step: int) -> list[Knocking]:
        return self.gate.knocks(step)

    def now(self) -> float:
        return self._line.now()

    async def hear_outside(self, until: float) -> tuple[PeerId, Outside] | None:
        """The next answer to somebody who comes back; what else arrives is filed as ever."""
        while self._line.now() < until:
            heard = await self._line.receive(until)
            if heard is not None:
                sender, packet = heard
                if isinstance(packet.frame, SyncShown | StateShown | Waiting | Busy | Begun):
                    return sender, packet.frame
                self._dispatch(sender, packet)
        return None

    def next_incarnation(self, now: int) -> int:
        """In which this peer has signed nothing yet."""
        return max(now, self._journal.last_incarnation) + 1

    @property
    def begun(self) -> Begun | None:
        """The last time that this peer began anew."""
        return self._journal.begun

    def begins(self, begun: Begun) -> None:
        self._journal.begins(begun)

    def speak(self) -> None:
        """A member again. Others knew up to delta earlier how the last announcement ended."""
        self._looks_on = False
        self.pace, self._stopwatch = self.next_pace, Stopwatch()
        if isinstance(self._last, Sighting):
            self._last.bring_forward(self.pace.delta)

    def _begin_step(self, step: int) -> None:
        """The last one has ended, if this peer was in one."""
        if step > self._step:
            if self._step >= 0:
                self._forget(step - 1)
            self._step = step

    def _forget(self, step: int) -> None:
        """Nothing grows from step to step."""
        last = {place: ended for place, ended in self._ended.items() if place.step == step}
        self._stopwatch.delayed(max((ended.lag for ended in last.values()), default=0.0))
        self._stopwatch.next_step()
        # Those who looked on need proof of the last announcement too, and what that takes may still be on its way.
        self._to_prove = {place: due for place, due in self._to_prove.items() if place in last and due[0]}
        self._ended = {place: last[place] for place in self._to_prove}
        self._shelf.drop_before(step)
        for kept in (self._parts, self._shown):
            for place in [place for place in kept if place.step < step]:
                del kept[place]
        self._room.over(step)
        for by_step in (self._silent, self._doubles):
            for old in [old for old in by_step if old < step]:
                del by_step[old]
        self.gate.forget(step)
        self._blobs.next_step(watched=bool(self.gate.watchers))


def _put(table: dict[PeerId, K], key: PeerId, value: K) -> bool:
    """The first counts; whether this is it."""
    if key in table:
        return False
    table[key] = value
    return True
