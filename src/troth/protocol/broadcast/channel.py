"""The protocol's channel on a network that delays, loses and lies: announcements are agreed, blobs checked on arrival.

One peer's end of it, made of objects with one job each: position (which frames concern this peer), announcer, part exchange,
catch-up server, pacing (deadlines), and the listener that waits for frames and hands them on.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from troth.crypto import Identity, PeerId, Slot
from troth.protocol.broadcast.announcement import Announcement
from troth.protocol.broadcast.announcer import Announcer
from troth.protocol.broadcast.exchange import EarlyFrameBuffer, MemoryQuota, PartExchange
from troth.protocol.broadcast.link import Outlet, PacketLink, SignedSlots
from troth.protocol.broadcast.listener import Listener
from troth.protocol.broadcast.observed import ObservedAnnouncement, StreamPosition
from troth.protocol.broadcast.serving import CatchUpServer, Doorkeeper
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
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.frames import BlobSent, BlobWanted, Busy
from troth.protocol.wire.messages import Measured, Message, Phase, Probe, SignedRejoin, Ticket
from troth.protocol.wire.phases import seal
from troth.protocol.wire.primitives import Primitives

R = TypeVar("R")
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
        self.listener = Listener(
            link,
            self.outlet,
            self.position,
            self.pacing,
            self._announcer,
            self._exchange,
            self.catch_up,
            self.doorkeeper,
            self._early_frames,
        )

    # Announcements

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        running = self._begin(slot, view)
        if isinstance(running, Announcement):
            self._say(slot, message, running)
        return await self._finish(slot, running)

    def _begin(self, slot: Slot, view: AttemptView) -> Announcement | ObservedAnnouncement:
        self._enter(view)
        if slot.phase == Phase.COMMIT:
            self._begin_step(slot.step)
        running = self._announcer.observe(slot) if self.position.observing else self._announcer.begin(slot)
        self.listener.take_up(slot)
        return running

    def _say(self, slot: Slot, message: Message, running: Announcement) -> None:
        self.signed_slots.claim(slot)  # before it is signed: a slot is signed once, whatever happens (SPEC B1)
        running.say(seal(self._identity, slot, message), self._link.now())

    async def _finish(self, slot: Slot, running: Announcement | ObservedAnnouncement) -> Said:
        self._announcer.tick()
        while running.decision is None:
            assert running.deadline is not None
            deadline = running.deadline
            if not await self.listener.hear_one(deadline) or self._link.now() >= deadline:
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
        await self.listener.wait_for_blobs(lambda: self._exchange.missing(slot, directly, self._link.gone()), count)
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
            await self.listener.wait_for_blobs(lambda: self._still_to_come(blobs), len(wanted))
        return {part: here[digest] for part, digest in wanted.items() if digest in here}

    def _still_to_come(self, blobs: Gather) -> int:
        """Number of wanted blobs that are not here, and whose owner has not broken off: in Reveal all say what they hold."""
        here, gone = self._exchange.blobs, self._link.gone()
        return sum(one not in here and blobs.owners.get(part) not in gone for part, one in blobs.wanted.items())

    async def _disclose(
        self, slot: Slot, blobs: Disclose, view: AttemptView
    ) -> dict[Showing, dict[PeerId, ProvenPart]]:
        self._announcer.to_all(slot, self._exchange.own(slot, blobs.mine))
        clip = slot.phase == Phase.CLIP
        due = self.pacing.due(2) if clip else self.pacing.due() + self.pacing.more_bulk(view)
        await self.listener.wait(due, lambda: self._exchange.are_shown(slot, blobs.wanted, blobs.count))
        return self._exchange.shown(slot, blobs.wanted)

    async def _forward(self, slot: Slot, blobs: Forward) -> dict[Delivery, ProvenPart]:
        if not self.position.observing:
            self._exchange.forward(slot, blobs.parts)
        found: dict[Delivery, ProvenPart] = {}

        def all_found() -> bool:
            found.update(self._exchange.offered(slot, set(blobs.wanted) - found.keys(), blobs.fits))
            return len(found) == len(blobs.wanted)

        await self.listener.wait(self.pacing.due(3), all_found)
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
        self.pacing.latency.back_at_link(self._link.now(), 1)  # after this step's gradient
        return self.pacing.latency.took()

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
        self.pacing.latency.delayed(self._announcer.ended.over(step))
        self.pacing.latency.next_step()
        self._early_frames.drop_before(step)
        self._announcer.forget(step)
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
        self.resting, until = True, self.pacing.ended_at(self._link.now()) + least
        while not (
            self._link.now() >= until
            and (
                self.position.observing
                or self.catch_up.wanted
                or self._early_frames.has(slot)
                or slot.step in self.position.busy.values()
            )
        ):
            now = self._link.now()
            await self.listener.hear_one(until if now < until else now + _REST)
        self.resting = False
        if not self.position.observing:
            self.outlet.send_each(slot, members, Busy(slot.step))
        self.pacing.resume(self._link.now())

    # For a peer that comes back (SPEC B2)

    def stand_outside(self, everyone: frozenset[PeerId]) -> None:
        """Leave all steps, and take frames of these peers."""
        self._enter(AttemptView(everyone))

    def speak(self) -> None:
        """Stop observing: this peer is a member again."""
        self.position.observing = False
        self.pacing.speak()
