"""The protocol's channel on a network that delays, loses and lies: announcements agreed, blobs checked on arrival.

One peer's end of it. It asks for three things from outside (`PacketLink`): the time, a way to send a frame to one peer, and the
next frame that arrives before a deadline. Simulation and network both bring their own.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol, TypeVar

from troth.crypto import Digest, Identity, PeerId, Slot
from troth.protocol.broadcast.announcement import Announcement, Decision, Timing
from troth.protocol.broadcast.blobs import Blobs
from troth.protocol.broadcast.catch_up_server import CatchUpServer
from troth.protocol.broadcast.early_frames import EarlyFrameBuffer, MemoryQuota
from troth.protocol.broadcast.observed import ObservedAnnouncement
from troth.protocol.broadcast.signed_slots import SignedSlots, SignedSlotsInMemory
from troth.protocol.broadcast.timeouts import LatencyEstimator, Timeouts
from troth.protocol.core.channel import Blame, Delivery, Entry, Equivocations, ProvenParts, Showing
from troth.protocol.core.errors import StalledError
from troth.protocol.core.parts import ProvenPart
from troth.protocol.wire.frames import (
    AGREEMENT,
    BlobSent,
    BlobWanted,
    Busy,
    Certificate,
    Chained,
    Decided,
    Frame,
    Outside,
    Packet,
    PartSent,
    PartShown,
    RejoinRequest,
    Relayed,
    RestartCertificate,
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
    Malformed,
    Measured,
    Message,
    Phase,
    SignedRejoin,
    most_bytes,
    said_as,
    seal,
)
from troth.protocol.wire.primitives import Primitives

R = TypeVar("R", Announcement, ObservedAnnouncement)
K = TypeVar("K")


class PacketLink(Protocol):
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
        link: PacketLink,
        bounds: Timeouts,
        tools: Primitives,
        journal: SignedSlots | None = None,
        *,
        observing: bool = False,
    ) -> None:
        self._identity = identity
        self._journal = journal if journal is not None else SignedSlotsInMemory()
        self._observing = observing  # hears everything and says nothing (SPEC B2)
        self._me = identity.peer
        self._link = link
        self.bounds = bounds
        self.timeouts = self.next_timeouts = bounds.slowest  # what holds now, and from the next Commit on (SPEC Q8)
        self._latency = LatencyEstimator()
        self._ended: dict[
            Slot, Announcement
        ] = {}  # in this step, and those of the last one that are still to be proved
        self._tools = tools
        self._last: Announcement | ObservedAnnouncement | None = (
            None  # the one that ended last: deadlines count from its end
        )
        self._entry = Entry(frozenset())
        self._step = -1  # that was begun last
        self._relayed: dict[PeerId, set[Frame]] = defaultdict(set)  # in this announcement
        self._blame = Blame()
        self.catch_up = CatchUpServer(self._send, tools)
        self._began_with = 0  # members at the start of the step
        self._quorum = 0  # at least more than half of the members at the start of the step
        self._to_prove: dict[Slot, tuple[frozenset[PeerId], int]] = {}  # to whom, and how many have to sign
        self._left: set[PeerId] = set()  # who waits for this step to be made again
        self._members: tuple[PeerId, ...] = ()
        self._silent: dict[int, set[PeerId]] = defaultdict(set)  # by step: whom an announcement missed (SPEC Q7)
        self._equivocations: dict[int, dict[PeerId, tuple[Slot, Envelope, Envelope]]] = defaultdict(dict)
        self._running: tuple[Slot, Announcement | ObservedAnnouncement] | None = None
        self._quota = MemoryQuota(bounds.room)  # for everything that others put here
        self._early_frames = EarlyFrameBuffer(self._quota)  # packets for announcements that have not begun here
        self._needed: int | None = None  # the step from which on somebody who comes back needs to know everything
        self._parts: dict[Slot, dict[int, dict[PeerId, ProvenPart]]] = defaultdict(lambda: defaultdict(dict))
        self._shown: dict[Slot, dict[Showing, dict[PeerId, ProvenPart]]] = defaultdict(lambda: defaultdict(dict))
        self._blobs = Blobs(self._send, tools, self._quota)
        self.write_down: Callable[[Slot, Mapping[PeerId, Announced]], None] = lambda _slot, _said: None

    # Announcements

    def enter(self, entry: Entry) -> None:
        self._entry = entry
        self._begin_step(entry.step)  # before it is asked how long things took in the last one

    @property
    def waits_for(self) -> tuple[Slot, frozenset[PeerId]] | None:
        """Where this peer is, and who has not spoken there yet; for people who look at it."""
        if self._running is None:
            return None
        slot, running = self._running
        heard = running.heard if isinstance(running, Announcement) and running.decision is None else self._members
        return slot, frozenset(self._members) - frozenset(heard)

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        if self._observing:
            timing = self._open(slot)
            observed = ObservedAnnouncement(
                slot, self._members, self._voices, timing, self._tools, self._quorum or None
            )
            return await self._finish(slot, self._run(slot, observed))
        running = self._begin(slot)
        self._journal.claim(slot)  # before it is signed: a slot is signed once, whatever happens (SPEC B1)
        running.say(seal(self._identity, slot, message), self._link.now())
        return await self._finish(slot, running)

    def _begin(self, slot: Slot) -> Announcement:
        timing, disputed_links = self._open(slot), self._entry.disputed_links.get(self._me, frozenset())
        numbers = self._entry.liars, self._quorum or None
        return self._run(
            slot, Announcement(slot, self._identity, self._members, timing, self._tools, disputed_links, *numbers)
        )

    @property
    def _voices(self) -> int:
        """So many are not all liars."""
        return self._entry.liars + 1 if self._entry.quorum else self._quorum

    def _open(self, slot: Slot) -> Timing:
        """Who takes part, and when it began; with Commit another step, and another pace."""
        if slot.phase == Phase.COMMIT:
            self._begin_step(slot.step)
            self.timeouts = self.next_timeouts
        self._members = tuple(sorted(self._entry.members - self._silent[slot.step]))
        if slot.phase == Phase.COMMIT:
            self._began_with = len(self._entry.members)
            self._quorum = max(len(self._entry.members) // 2 + 1, self._entry.liars + 1, self._entry.quorum)
            self._left.clear()
        now = self._link.now()
        return self._timing(slot, now if self._last is None or self._last.ends is None else self._last.ends)

    def _run(self, slot: Slot, running: R) -> R:
        self._running = (slot, running)
        self._relayed.clear()
        self._take_up(slot)
        return running

    def _take_up(self, slot: Slot) -> None:
        """What came for this place before this peer was there."""
        for sender, packet in self._early_frames.take(slot):
            self._dispatch(sender, packet)

    async def _finish(self, slot: Slot, running: Announcement | ObservedAnnouncement) -> Mapping[PeerId, Announced]:
        decision = await self._until_decided(running)
        self._tell_observers(slot, decision)
        self._silent[slot.step] |= set(self._members) - decision.said.keys()
        self._equivocations[slot.step] |= {peer: (slot, *pair) for peer, pair in decision.equivocations.items()}
        self._last = running
        self._blame = Blame(
            self._blame.unheard | running.blame.unheard, self._blame.incomplete | running.blame.incomplete
        )
        opened = {peer: self._tools.open(slot, peer, envelope) for peer, envelope in decision.said.items()}
        agreed = {peer: said for peer, said in sorted(opened.items()) if not isinstance(said, Malformed)}
        if slot.phase == Phase.COMMIT:
            self.next_timeouts = self.bounds.after([said_as(said, Commit).took for said in agreed.values()])
        if isinstance(running, Announcement):
            self._ended[slot] = running
            self._to_prove[slot] = (self.catch_up.observers, self._voices)
            self._show_proof(slot, running)
        self.write_down(slot, agreed)
        return agreed

    def _tell_observers(self, slot: Slot, decision: Decision) -> None:
        if self.catch_up.observers and decision.said:  # nothing: the others went on without this peer
            said = {bytes(peer): envelope for peer, envelope in decision.said.items()}
            equivocations = {bytes(peer): pair for peer, pair in decision.equivocations.items()}
            self.send_each(slot, sorted(self.catch_up.observers), Decided(said, equivocations))

    def _show_proof(self, slot: Slot, ended: Announcement) -> None:
        """To those who look on, once: with this they need nobody else's word (SPEC B2)."""
        if slot not in self._to_prove:
            return
        observers, voices = self._to_prove[slot]
        if slot.step == self._entry.step:
            observers |= self.catch_up.observers  # some may have come since
        if observers and (proof := ended.proof(voices)) is not None:
            del self._to_prove[slot]
            self.send_each(slot, sorted(observers), proof)

    def equivocations(self, step: int) -> Equivocations:
        return dict(self._equivocations[step])

    def blame(self) -> Blame:
        blame, self._blame = self._blame, Blame()
        return blame

    def took(self) -> Measured | None:
        self._latency.back_at_link(self._link.now(), self._entry.audits)
        return self._latency.took()

    def _timing(self, slot: Slot, start: float) -> Timing:
        timeouts = self.timeouts
        exchange = (
            2 * timeouts.delta + timeouts.bulk
        )  # begun up to delta later elsewhere, and on its way for delta and more
        allowance = {
            Phase.COMMIT: timeouts.delta + timeouts.compute,  # the gradient
            Phase.CLIP: 3 * exchange,  # parts; and disputed ones, handed round and passed on
            Phase.REVEAL: exchange,
            Phase.CONFIRM: exchange,  # what Reveal left undecided is asked for from everyone
            Phase.REPORT: exchange,
            Phase.ACCUSE: timeouts.compute * max(1, self._entry.audits),
            Phase.VOTE: exchange + self._more_bulk + timeouts.compute * max(1, self._entry.audits),
            Phase.RECORD: 0.0,
        }[Phase(slot.phase)]
        relayed = any(
            peer in self._members and others & set(self._members) for peer, others in self._entry.disputed_links.items()
        )
        return Timing(start, allowance, timeouts.delta, relayed)

    async def _until_decided(self, running: Announcement | ObservedAnnouncement) -> Decision:
        self._tick()
        while running.decision is None:
            assert running.deadline is not None
            deadline = running.deadline
            if not await self._hear_one(deadline) or self._link.now() >= deadline:
                self._tick()
        self._tick()  # hands on what decided
        return running.decision

    def _tick(self) -> None:
        if self._running is not None:
            slot, running = self._running
            self._look_round(running)
            running.tick(self._link.now())
            self._flush(slot, running)

    def _look_round(self, running: Announcement | ObservedAnnouncement) -> None:
        if isinstance(running, Announcement) and running.decision is None:
            running.broken_off(self._link.gone())

    def _flush(self, slot: Slot, running: Announcement | ObservedAnnouncement) -> None:
        if frames := running.take():
            self._to_all(slot, frames)

    def _pass_on(self, sender: PeerId, slot: Slot, frame: Frame) -> None:
        """To whom the sender does not reach: its values and views, two of each (SPEC F2)."""
        disputed_links, relayed = self._entry.disputed_links.get(sender), self._relayed[sender]
        running = self._running[1] if self._running is not None else None
        if not disputed_links or not isinstance(frame, Value | View) or not isinstance(running, Announcement):
            return
        if (
            frame in relayed
            or sum(type(old) is type(frame) for old in relayed) == 2
            or not running.is_of(sender, frame)
        ):
            return
        relayed.add(frame)
        self.send_each(slot, sorted(disputed_links & set(self._members)), Relayed(sender, frame))

    # Frames

    async def _hear_one(self, until: float) -> bool:
        self._latency.back_at_link(self._link.now(), self._entry.audits)
        heard = await self._link.receive(until)
        self._latency.left_link(self._link.now())
        if heard is not None:
            self._dispatch(*heard)
        if self._quorum and len(self._left) >= self._quorum:
            raise StalledError(f"{len(self._left)} members have left the step, and wait for the others")
        return heard is not None

    async def _wait(self, until: float, enough: Callable[[], bool]) -> None:
        """Hear frames until there is enough or it is too late."""
        while not enough() and self._link.now() < until:
            await self._hear_one(until)

    async def _wait_for_blobs(self, until: float, missing: Callable[[], int], of: int) -> None:
        """Of everybody: when more than half are there is worth knowing, whatever liars keep back (SPEC Q8)."""
        began = self._link.now()
        await self._wait(until, lambda: 2 * missing() < max(1, of))
        self._latency.carried(self._link.now() - began)
        await self._wait(until, lambda: not missing())

    def _dispatch(self, sender: PeerId, packet: Packet) -> None:
        """Bounded, and filed by place; nothing is believed yet."""
        slot, frame = packet.slot, packet.frame
        if isinstance(frame, SyncWanted | StateWanted | RejoinRequest):
            self.catch_up.hear(sender, slot, frame, self._running[0].step if self._running is not None else -1)
            return
        if isinstance(frame, Waiting | Busy | RestartCertificate):
            if isinstance(frame, Waiting) and self._running is not None:
                self._hear_waiting(sender, slot, frame, self._running[0])
            return
        if not self._may_speak(sender):
            return
        if isinstance(frame, BlobWanted):
            most, may_come = 4 * len(self._entry.members), self._may_come(slot)
            self._blobs.hand_out(sender, slot, Digest(frame.digest), most=most, may_come=may_come)
            return
        proves = isinstance(frame, Certificate) and slot in self._ended
        if not (self._may_come(slot) or proves) or not self._matters(packet):
            return
        if self._running is None and self._observing:
            self._keep_for_later(sender, packet)
            return
        if isinstance(frame, AGREEMENT):
            if self._running is not None and self._running[0] == slot:
                running = self._running[1]
                self._pass_on(sender, slot, frame)
                self._look_round(running)
                running.hear(sender, frame, self._link.now())
                self._flush(slot, running)
            elif proves:
                self._ended[slot].hear(sender, frame, self._link.now())  # it tells how long that takes
            elif self._key(slot) > self._newest:
                self._early_frames.put(sender, packet, self._most_early)
            if proves:
                self._show_proof(slot, self._ended[slot])  # as soon as there is one, also before the next announcement
            return
        self._keep(sender, packet)

    def _keep(self, sender: PeerId, packet: Packet) -> None:
        """Blobs and signatures, each once, as far as the sender has room."""
        slot, frame = packet.slot, packet.frame
        if isinstance(frame, BlobSent):
            self._blobs.put_from(sender, slot, frame.blob, packet.size)
            return
        if not self._quota.has(sender, packet.size):
            return  # before anything is looked up: even an empty table takes up memory
        match frame:
            case PartSent():
                proven = ProvenPart(frame.blob, tuple(map(Digest, frame.path)))
                kept = _put(self._parts[slot][frame.part], sender, proven)
            case PartShown():
                proven = ProvenPart(frame.blob, tuple(map(Digest, frame.path)))
                kept = _put(self._shown[slot][frame.part, sender], PeerId(frame.contributor), proven)
            case _:
                kept = False
        if kept:
            self._quota.take(sender, packet.size, slot.step)

    def _matters(self, packet: Packet) -> bool:
        """What nobody here will ever look at takes up nobody's room."""
        slot, frame = packet.slot, packet.frame
        said = frame.frame if type(frame) is Relayed else frame  # exact types: this is asked of every packet
        if type(said) is Value or type(said) is Chained:
            # Too long for any message of its phase: for every honest peer alike, so it was never said.
            return len(said.envelope.payload) <= most_bytes(slot.phase) and not self._only_observed(slot)
        if type(said) is View:
            return not self._only_observed(slot)
        if type(said) is PartSent or type(said) is PartShown:
            return not self._abandoned(slot)
        if type(said) is Decided:
            return self._observing  # members decide for themselves
        return type(said) is BlobSent or type(said) is Certificate

    def _abandoned(self, slot: Slot) -> bool:
        """An attempt that was given up: its parts are sent again, if anybody still needs them."""
        return self._running is not None and self._key(slot)[:2] < self._newest[:2]

    def _only_observed(self, slot: Slot) -> bool:
        """A step that this peer has no say in: of its announcements it needs what members decided, and no more."""
        return self._observing and self._running is not None and slot.step == self._running[0].step

    def _hear_waiting(self, sender: PeerId, slot: Slot, frame: Waiting, here: Slot) -> None:
        """It is in no step (SPEC B5). Who only looks on stops looking when more than half have left the step. Members do not
        leave on anybody's word: liars would say so to some of them, and go on with the rest."""
        if not self._observing and frame.step <= here.step:
            self._send(sender, slot, Busy(here.step))
        if self._observing and frame.step == here.step and frame.incarnation > here.incarnation:
            self._left |= {sender} & self._entry.members

    def _keep_for_later(self, sender: PeerId, packet: Packet) -> None:
        """While it is not known yet which step to look on from: of each sender its last two steps, then all from that one on."""
        first = packet.slot.step - 1 if self._needed is None else self._needed
        if packet.slot.step >= first:
            self._early_frames.drop_before(first, sender)
            self._early_frames.put(sender, packet, self._most_early)

    def observe_from(self, step: int) -> None:
        self._needed = step

    @property
    def _most_early(self) -> int:
        """Frames of one sender that may wait."""
        steps = 8 if self._observing else 1  # that somebody may be behind
        return steps * (8 + 4 * len(self._entry.members))

    @property
    def kept_bytes(self) -> int:
        """What others have put here: early packets, parts, blobs and signatures, by their length on the line."""
        return self._quota.kept_bytes

    def _may_speak(self, sender: PeerId) -> bool:
        """Strangers may ask and knock, no more: keys cost nothing."""
        expected = sender in self._entry.members or sender in self._entry.admitted
        return not self._entry.members or expected or self.catch_up.admits(sender)

    def _may_come(self, slot: Slot) -> bool:
        """Only places of this step and the next: else one liar could fill what is kept for others with invented ones."""
        if self._running is None:
            first = self._needed or 0
            return self._observing or slot.step <= first + 1  # who comes back does not know yet which step it will be
        now = self._running[0]
        same = slot.run == now.run and slot.incarnation == now.incarnation
        most = ATTEMPTS_PER_MEMBER * max(self._began_with, len(self._entry.members))
        return same and now.step <= slot.step <= now.step + 1 and 0 <= slot.attempt < most

    @staticmethod
    def _key(slot: Slot) -> tuple[int, int, int]:
        return slot.step, slot.attempt, slot.phase

    @property
    def _newest(self) -> tuple[int, int, int]:
        return self._key(self._running[0]) if self._running is not None else (-1, 0, 0)

    # Blobs

    async def scatter(self, slot: Slot, proven_parts: Mapping[int, tuple[PeerId, ProvenPart]]) -> ProvenParts:
        mine, expected = self._parts[slot], self._entry.awaited
        for part, (owner, proven) in proven_parts.items():
            if owner == self._me:
                mine[part][self._me] = proven
            else:
                self._send(owner, slot, PartSent(part, proven.blob, proven.path))
        otherwise = self._entry.disputed_links.get(self._me, frozenset())  # those hand it round
        directly = {part: senders - otherwise for part, senders in expected.items()}
        await self._wait_for_blobs(
            self._due(),
            lambda: sum(len(senders - mine[part].keys() - self._link.gone()) for part, senders in directly.items()),
            sum(map(len, directly.values())),
        )
        return {
            part: {peer: mine[part][peer] for peer in sorted(senders & mine[part].keys())}
            for part, senders in expected.items()
        }

    async def gather(self, slot: Slot, mine: Mapping[int, bytes], wanted: Mapping[int, Digest]) -> Mapping[int, bytes]:
        for blob in mine.values():
            self._blobs.put(slot, blob)
        if slot.phase == Phase.CLIP:
            self._to_all(slot, [BlobSent(blob) for blob in mine.values()])
        for part, digest in sorted(wanted.items()):  # what does not come by itself
            if digest not in self._blobs:
                known = self._entry.far.get(part, frozenset()) if slot.phase == Phase.CLIP else self._members
                self.send_each(slot, sorted(known), BlobWanted(digest))
        if not (self._observing and slot.phase == Phase.CLIP):  # an onlooker has no time to lose: it asks after Reveal
            await self._wait_for_blobs(
                self._due(), lambda: sum(digest not in self._blobs for digest in wanted.values()), len(wanted)
            )
        return {part: self._blobs[digest] for part, digest in wanted.items() if digest in self._blobs}

    async def disclose(
        self, slot: Slot, mine: ProvenParts, wanted: Collection[Showing], count: int
    ) -> Mapping[Showing, Mapping[PeerId, ProvenPart]]:
        shown = self._shown[slot]
        for part, proven_parts in mine.items():
            shown[part, self._me] = dict(proven_parts)
            frames = [PartShown(part, peer, proven.blob, proven.path) for peer, proven in proven_parts.items()]
            self._to_all(slot, frames)
        due = self._due(2) if slot.phase == Phase.CLIP else self._due() + self._more_bulk
        await self._wait(due, lambda: all(len(shown[showing]) >= count for showing in wanted))
        return {showing: dict(shown[showing]) for showing in wanted}

    async def pass_on(
        self,
        slot: Slot,
        proven_parts: Mapping[Delivery, tuple[PeerId, ProvenPart]],
        wanted: Collection[Delivery],
        fits: Callable[[Delivery, ProvenPart], bool],
    ) -> Mapping[Delivery, ProvenPart]:
        shown = self._shown[slot]
        for (part, contributor), (owner, proven) in sorted(proven_parts.items(), key=lambda item: item[0]):
            if owner != self._me and not self._observing:
                self._send(owner, slot, PartShown(part, contributor, proven.blob, proven.path))
        found: dict[Delivery, ProvenPart] = {}

        def all_found() -> bool:
            for part, contributor in set(wanted) - found.keys():
                offered = [
                    said[contributor] for (about, _), said in shown.items() if about == part and contributor in said
                ]
                right = [proven for proven in offered if fits((part, contributor), proven)]
                found.update({(part, contributor): right[0]} if right else {})
            return len(found) == len(wanted)

        await self._wait(self._due(3), all_found)
        return found

    @property
    def _more_bulk(self) -> float:
        """For each part that is laid open beside the first: all of them at once fit through no line that one does (SPEC V3)."""
        return self.timeouts.bulk * max(0, self._entry.disputed - 1)

    def _due(self, exchanges: int = 1) -> float:
        """When the first, second … exchange of blobs since the last announcement is due."""
        assert self._last is not None
        assert self._last.ends is not None, "blobs follow an announcement"
        return self._last.ends + exchanges * (2 * self.timeouts.delta + self.timeouts.bulk)

    def _send(self, to: PeerId, slot: Slot, frame: Frame) -> None:
        self._link.send(to, Packet(slot, frame))

    def send_each(self, slot: Slot, peers: Iterable[PeerId], frame: Frame) -> None:
        packet = Packet(slot, frame)  # one, so that it is encoded once
        for peer in peers:
            if peer != self._me:
                self._link.send(peer, packet)

    def _to_all(self, slot: Slot, frames: Iterable[Frame]) -> None:
        """To all members; what onlookers need also to them."""
        if self._observing:
            return
        for frame in frames:
            watched = isinstance(frame, Certificate | BlobSent)
            self.send_each(slot, (*self._members, *(sorted(self.catch_up.observers) if watched else ())), frame)

    # For oneself, when one comes back (SPEC B2)

    def rejoins(self, step: int) -> list[SignedRejoin]:
        return self.catch_up.rejoins(step)

    def now(self) -> float:
        return self._link.now()

    async def hear_outside(self, until: float) -> tuple[PeerId, Outside] | None:
        """The next answer to somebody who comes back; what else arrives is filed as ever."""
        while self._link.now() < until:
            heard = await self._link.receive(until)
            if heard is not None:
                sender, packet = heard
                if isinstance(packet.frame, SyncShown | StateShown | Waiting | Busy | RestartCertificate):
                    return sender, packet.frame
                self._dispatch(sender, packet)
        return None

    def next_incarnation(self, now: int) -> int:
        """In which this peer has signed nothing yet."""
        return max(now, self._journal.last_incarnation) + 1

    @property
    def begun(self) -> RestartCertificate | None:
        """The last time that this peer began anew."""
        return self._journal.begun

    def begins(self, begun: RestartCertificate) -> None:
        self._journal.begins(begun)

    def speak(self) -> None:
        """A member again. Others knew up to delta earlier how the last announcement ended."""
        self._observing = False
        self.timeouts, self._latency = self.next_timeouts, LatencyEstimator()
        if isinstance(self._last, ObservedAnnouncement):
            self._last.bring_forward(self.timeouts.delta)

    def _begin_step(self, step: int) -> None:
        """The last one has ended, if this peer was in one."""
        if step > self._step:
            if self._step >= 0:
                self._forget(step - 1)
            self._step = step

    def _forget(self, step: int) -> None:
        """Nothing grows from step to step."""
        last = {slot: ended for slot, ended in self._ended.items() if slot.step == step}
        self._latency.delayed(max((ended.lag for ended in last.values()), default=0.0))
        self._latency.next_step()
        # Those who looked on need proof of the last announcement too, and what that takes may still be on its way.
        self._to_prove = {slot: due for slot, due in self._to_prove.items() if slot in last and due[0]}
        self._ended = {slot: last[slot] for slot in self._to_prove}
        self._early_frames.drop_before(step)
        for kept in (self._parts, self._shown):
            for slot in [slot for slot in kept if slot.step < step]:
                del kept[slot]
        self._quota.over(step)
        for by_step in (self._silent, self._equivocations):
            for old in [old for old in by_step if old < step]:
                del by_step[old]
        self.catch_up.forget(step)
        self._blobs.next_step(watched=bool(self.catch_up.observers))


def _put(table: dict[PeerId, K], key: PeerId, value: K) -> bool:
    """The first counts; whether this is it."""
    if key in table:
        return False
    table[key] = value
    return True
