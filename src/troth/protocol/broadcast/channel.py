"""The protocol's channel on a network that delays, loses and lies: announcements are agreed, blobs checked on arrival.

One peer's end of it waits for packets, and hands each to the one object that it concerns: announcer, part exchange, catch-up
server, doorkeeper. What is filed there is bounded, and not believed yet. Position says which frames concern this peer at all,
pacing until when to wait.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from troth.crypto import Digest, Identity, PeerId, Slot
from troth.protocol.broadcast.announcement import Announcement
from troth.protocol.broadcast.announcer import Announcer, StreamPosition
from troth.protocol.broadcast.exchange import EarlyFrameBuffer, MemoryQuota, PartExchange
from troth.protocol.broadcast.link import Outlet, PacketLink, SignedSlots
from troth.protocol.broadcast.observed import ObservedAnnouncement
from troth.protocol.broadcast.serving import Asked, CatchUpServer, Doorkeeper
from troth.protocol.broadcast.timeouts import Pacing, Timeouts
from troth.protocol.core.channel import (
    AttemptView,
    Blame,
    Delivery,
    Disclose,
    Equivocations,
    Exchange,
    Forward,
    Gather,
    ProvenParts,
    Said,
    Scatter,
    Showing,
)
from troth.protocol.core.parts import ProvenPart
from troth.protocol.core.run import LeftOutError, StalledError
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.frames import (
    AGREEMENT,
    Answer,
    BlobSent,
    BlobWanted,
    Busy,
    Knock,
    Packet,
    RestartCertificate,
    SyncShown,
    Waiting,
)
from troth.protocol.wire.messages import Measured, Message, Phase, Probe, SignedRejoin, Ticket
from troth.protocol.wire.phases import seal
from troth.protocol.wire.primitives import Primitives

R = TypeVar("R")
_BLOBS_PER_MEMBER = 4  # blobs that a peer may ask for in a step, per member
_REST = 60.0  # seconds; a resting member wakes for nothing else, so any number will do
OnAnnounced = Callable[[Slot, Said], None]  # called with every announcement that has ended


class BroadcastChannel:
    """A member's or observer's end of the channel: `core.channel.Channel` and `core.channel.Noticed`."""

    def __init__(
        self,
        identity: Identity,
        link: PacketLink,
        bounds: Timeouts,
        tools: Primitives,
        signed_slots: SignedSlots | None = None,
        *,
        observing: bool = False,
        on_announced: OnAnnounced = lambda _slot, _said: None,
    ) -> None:
        self._identity = identity
        self._link = link
        self._tools = tools
        self._on_announced = on_announced
        self._step = -1  # begun last
        self.resting = False  # the run pauses, and nobody asks to come back (SPEC G3)
        self.signed_slots = signed_slots if signed_slots is not None else SignedSlots()
        self.position = StreamPosition(observing=observing)
        self.pacing = Pacing(bounds)
        self.outlet = Outlet(link, identity.peer)
        secret = identity.sign(b"troth/few/1")  # never sent
        self.catch_up = CatchUpServer(self.outlet.send, tools, secret)
        self.doorkeeper = Doorkeeper(tools, secret)
        self._quota = MemoryQuota(bounds.memory)  # for all frames of others that are kept here
        self._early_frames = EarlyFrameBuffer(self._quota)
        self._announcer = Announcer(identity, self.position, self.pacing, link, self.outlet, self.catch_up, tools)
        self._exchange = PartExchange(identity.peer, self.outlet, self._quota)

    # Announcements

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        running = self._begin(slot, view)
        if isinstance(running, Announcement):
            self.signed_slots.claim(slot)  # before it is signed: a slot is signed once, whatever happens (SPEC B1)
            running.say(seal(self._identity, slot, message), self.now())
        return await self._finish(slot, running)

    def _begin(self, slot: Slot, view: AttemptView) -> Announcement | ObservedAnnouncement:
        self._enter(view)
        if slot.phase == Phase.COMMIT:
            self._begin_step(slot.step)
        running = self._announcer.begin(slot)
        self._take_up(slot)
        return running

    async def _finish(self, slot: Slot, running: Announcement | ObservedAnnouncement) -> Said:
        self._announcer.tick()
        while running.decision is None:
            assert running.deadline is not None
            deadline = running.deadline
            if not await self.hear_one(deadline) or self.now() >= deadline:
                self._announcer.tick()
        self._announcer.tick()  # sends the frames that decided to the others
        agreed = self._announcer.finish(slot, running, running.decision)
        self._on_announced(slot, agreed)
        return agreed

    # Blobs

    async def exchange(self, slot: Slot, blobs: Exchange[R], view: AttemptView) -> R:
        self._enter(view)
        exchanged: Any
        match blobs:
            case Scatter():
                exchanged = await self._scatter(slot, blobs, view)
            case Gather():
                exchanged = await self._gather(slot, blobs)
            case Disclose():
                exchanged = await self._disclose(slot, blobs, view)
            case Forward():
                exchanged = await self._forward(slot, blobs)
            case _:
                raise TypeError(f"no such exchange: {blobs}")
        return cast(R, exchanged)

    async def _scatter(self, slot: Slot, blobs: Scatter, view: AttemptView) -> ProvenParts:
        self._exchange.send_parts(slot, blobs.parts)
        relayed = view.disputed_links.get(self._identity.peer, frozenset())  # these go another way
        directly = {part: senders - relayed for part, senders in blobs.expected.items()}
        count = sum(map(len, directly.values()))
        await self._wait_for_blobs(lambda: self._exchange.missing(slot, directly, self._link.gone()), count)
        return self._exchange.received(slot, blobs.expected)

    async def _gather(self, slot: Slot, blobs: Gather) -> dict[int, Blob]:
        here, by_themselves, wanted = self._exchange.blobs, slot.phase == Phase.CLIP, blobs.wanted
        for blob in blobs.mine.values():
            here.put(slot, blob)
        if by_themselves:
            self._announcer.to_all(slot, [BlobSent(blob.view) for blob in blobs.mine.values()])
        for part, digest in sorted(wanted.items()):
            if digest not in here:
                self.outlet.send_each(slot, sorted(blobs.ask.get(part, ())), BlobWanted(digest))
        if not (self.position.observing and by_themselves):  # an observer has no time to lose: it asks after Reveal
            await self._wait_for_blobs(lambda: self._still_to_come(blobs), len(wanted))
        return {part: here[digest] for part, digest in wanted.items() if digest in here}

    def _still_to_come(self, blobs: Gather) -> int:
        """Number of wanted blobs that are not here, and whose owner has not disconnected: in Reveal all say what they hold."""
        here, gone = self._exchange.blobs, self._link.gone()
        return sum(one not in here and blobs.owners.get(part) not in gone for part, one in blobs.wanted.items())

    async def _disclose(
        self, slot: Slot, blobs: Disclose, view: AttemptView
    ) -> dict[Showing, dict[PeerId, ProvenPart]]:
        self._announcer.to_all(slot, self._exchange.own(slot, blobs.mine))
        clip = slot.phase == Phase.CLIP
        due = self.pacing.due(2) if clip else self.pacing.due() + self.pacing.more_bulk(view)
        await self.wait(due, lambda: self._exchange.are_shown(slot, blobs.wanted, blobs.count))
        return self._exchange.shown(slot, blobs.wanted)

    async def _forward(self, slot: Slot, blobs: Forward) -> dict[Delivery, ProvenPart]:
        if not self.position.observing:
            self._exchange.forward(slot, blobs.parts)
        found: dict[Delivery, ProvenPart] = {}

        def all_found() -> bool:
            found.update(self._exchange.offered(slot, set(blobs.wanted) - found.keys(), blobs.fits))
            return len(found) == len(blobs.wanted)

        await self.wait(self.pacing.due(blobs.turn), all_found)
        return found

    def equivocations(self, step: int) -> Equivocations:
        return self._announcer.equivocations(step)

    def blame(self) -> Blame:
        return self._announcer.blame()

    def rejoins(self, step: int) -> list[SignedRejoin]:
        return self.catch_up.rejoins(step)

    def tickets(self) -> list[Ticket]:
        return self.doorkeeper.tickets

    def probes(self, step: int) -> list[Probe]:
        return self.doorkeeper.probes(step)

    def latencies(self, step: int) -> Measured | None:
        self._begin_step(step)
        self.pacing.latency.back_at_link(self.now(), 1)  # after this step's gradient
        return self.pacing.latency.took()

    # Waiting: here, and nowhere else

    def now(self) -> float:
        return self._link.now()

    async def hear_one(self, until: float) -> bool:
        """Route the next packet; return whether one came in time."""
        latency, position = self.pacing.latency, self.position
        latency.back_at_link(self.now(), position.view.audits)
        heard = await self._link.receive(until)
        latency.left_link(self.now())
        if heard is not None:
            self.route(*heard)
        if position.quorum and len(position.left) >= position.quorum:
            raise StalledError(f"{len(position.left)} members have left the step, and wait for the others")
        if position.ahead and len(position.ahead) >= position.voices:  # one of them is honest
            raise LeftOutError("the others are too many steps ahead")
        return heard is not None

    async def wait(self, until: float, enough: Callable[[], bool]) -> None:
        """Hear packets until there is enough, or it is too late."""
        while not enough() and self.now() < until:
            await self.hear_one(until)

    async def _wait_for_blobs(self, missing: Callable[[], int], of: int) -> None:
        """Wait for blobs. The time until more than half are there is measured, whatever liars withhold (SPEC Q8)."""
        until, began = self.pacing.due(), self.now()
        await self.wait(until, lambda: 2 * missing() < max(1, of))
        self.pacing.latency.carried(self.now() - began)
        await self.wait(until, lambda: not missing())

    async def hear_outside(self, until: float) -> tuple[PeerId, Answer] | None:
        """Wait for the next answer to a peer that is in no step; other frames are routed as usual. Records count from those that
        were asked for them: to check their signatures takes a while [M4]."""
        while self.now() < until:
            heard = await self._link.receive(until)
            if heard is not None:
                sender, packet = heard
                if isinstance(packet.frame, SyncShown) and not self.position.expects(sender):
                    continue
                if isinstance(packet.frame, Answer):
                    return sender, packet.frame
                self.route(sender, packet)
        return None

    # Packets

    def route(self, sender: PeerId, packet: Packet) -> None:
        """Hand a packet to the one object that it concerns."""
        slot, frame, position = packet.slot, packet.frame, self.position
        here = -1 if position.slot is None else position.slot.step
        if isinstance(frame, Asked):
            self.catch_up.hear(sender, slot, frame, here)
        elif isinstance(frame, Knock):
            self.doorkeeper.hear(sender, slot, frame, here)
        elif isinstance(frame, Waiting):
            if position.slot is not None:
                self._hear_waiting(sender, slot, frame, position.slot)
        elif isinstance(frame, Busy | RestartCertificate):
            if isinstance(frame, Busy) and position.expects(sender):
                position.busy[sender] = frame.step
        elif not (position.expects(sender) or self.catch_up.admits(sender)):
            return
        elif isinstance(frame, BlobWanted):
            most, may_come = _BLOBS_PER_MEMBER * len(position.view.members), position.takes(slot)
            self._exchange.blobs.hand_out(sender, slot, Digest(frame.digest), most=most, may_come=may_come)
        else:
            self._file(sender, packet)

    def _file(self, sender: PeerId, packet: Packet) -> None:
        slot, frame, position = packet.slot, packet.frame, self.position
        proves = self._announcer.proves(slot, frame)
        if not (position.takes(slot) or proves) or not position.needs(packet):
            position.note_ahead(sender, slot)
        elif position.slot is None and position.observing:
            self._keep_for_later(sender, packet)
        elif not isinstance(frame, AGREEMENT):
            self._exchange.keep(sender, packet)
        elif slot == position.slot or proves:
            self._announcer.hear(sender, slot, frame)
        elif position.is_ahead(slot):
            self._early_frames.put(sender, packet, position.most_early)

    def _take_up(self, slot: Slot) -> None:
        """Route the packets that came for this slot before this peer reached it."""
        for sender, packet in self._early_frames.take(slot):
            self.route(sender, packet)

    def _keep_for_later(self, sender: PeerId, packet: Packet) -> None:
        first = self.position.first_needed(packet.slot)
        if packet.slot.step >= first:
            self._early_frames.drop_before(first, sender)
            self._early_frames.put(sender, packet, self.position.most_early)

    def _hear_waiting(self, sender: PeerId, slot: Slot, frame: Waiting, here: Slot) -> None:
        """Answer a member that is in no step (SPEC B5). An observer stops when a quorum has left the step. A member does not
        leave on anybody's word: liars would say so to some members, and go on with the rest."""
        position = self.position
        if not position.observing and frame.step <= here.step:
            self.outlet.send(sender, slot, Busy(here.step))
        if position.observing and frame.step == here.step and frame.incarnation > here.incarnation:
            position.left |= {sender} & position.view.members

    # From step to step

    def _enter(self, view: AttemptView) -> None:
        self.position.view = view
        self._begin_step(view.step)

    def _begin_step(self, step: int) -> None:
        """Begin a step; the last one has ended, if this peer was in one."""
        if step > self._step:
            if self._step >= 0:
                self._forget(step - 1)
            self._step = step

    def _forget(self, step: int) -> None:
        """Drop the memory of earlier steps: nothing grows from step to step."""
        self.pacing.latency.delayed(self._announcer.end_step(step))
        self.pacing.latency.next_step()
        self._early_frames.drop_before(step)
        self.catch_up.forget(step)
        self.doorkeeper.forget(step)
        self._exchange.forget(step, observed=bool(self.catch_up.observers))

    @property
    def kept_bytes(self) -> int:
        """Bytes of others' packets that are kept here (early ones, parts and blobs), by their length on the wire."""
        return self._quota.kept_bytes

    @property
    def waits_for(self) -> tuple[Slot, frozenset[PeerId]] | None:
        """Slot that this peer is in, and the members that have not spoken in it yet, to show to people."""
        return None if self.position.slot is None else (self.position.slot, self._announcer.unheard)

    async def rest(self, slot: Slot, members: Iterable[PeerId], least: float) -> None:
        """Wait for a time since the last step, and until a peer asks to come back, or another member has begun the step of this
        Commit; and tell all that this one begins, before it computes anything: else those who are woken by its Commit would be
        late. The time has passed for all within Δ, whoever calls earlier (SPEC G3). An observer's members wake for it."""
        self.resting, until = True, self.pacing.ended_at(self.now()) + least
        while not (
            self.now() >= until
            and (
                self.position.observing
                or self.catch_up.wanted
                or self._early_frames.has(slot)
                or slot.step in self.position.busy.values()
            )
        ):
            now = self.now()
            await self.hear_one(until if now < until else now + _REST)
        self.resting = False
        if not self.position.observing:
            self.outlet.send_each(slot, members, Busy(slot.step))
        self.pacing.resume(self.now())

    # For a peer that comes back (SPEC B2)

    def stand_outside(self, everyone: frozenset[PeerId]) -> None:
        """Leave all steps, and take frames of these peers."""
        self._enter(AttemptView(everyone))

    def speak(self) -> None:
        """Stop observing: this peer is a member again."""
        self.position.observing = False
        self.pacing.speak()
