"""The one place that waits: for the next packet, or for a deadline. A packet goes to the one object that it concerns: bounded,
filed by slot, and not believed yet."""

from collections.abc import Callable
from dataclasses import dataclass

from troth.crypto import Digest, PeerId, Slot
from troth.protocol.broadcast.announcer import Announcer
from troth.protocol.broadcast.exchange import EarlyFrameBuffer, PartExchange
from troth.protocol.broadcast.link import Outlet, PacketLink
from troth.protocol.broadcast.observed import StreamPosition
from troth.protocol.broadcast.serving import Asked, CatchUpServer, Doorkeeper
from troth.protocol.broadcast.timeouts import Pacing
from troth.protocol.core.run import LeftOutError, StalledError
from troth.protocol.wire.frames import (
    AGREEMENT,
    Agreement,
    Answer,
    BlobWanted,
    Busy,
    Certificate,
    Knock,
    Packet,
    RestartCertificate,
    SyncShown,
    Waiting,
)

_BLOBS_PER_MEMBER = 4  # blobs that a peer may ask for in a step, per member


@dataclass
class Listener:
    """Receives packets, hands them on or keeps them for later, and measures how long this peer computed in between (SPEC Q8)."""

    link: PacketLink
    outlet: Outlet
    position: StreamPosition
    pacing: Pacing
    announcer: Announcer
    exchange: PartExchange
    catch_up: CatchUpServer
    doorkeeper: Doorkeeper
    early_frames: EarlyFrameBuffer

    def now(self) -> float:
        return self.link.now()

    async def hear_one(self, until: float) -> bool:
        """Route the next packet; return whether one came in time."""
        latency, position = self.pacing.latency, self.position
        latency.back_at_link(self.link.now(), position.view.audits)
        heard = await self.link.receive(until)
        latency.left_link(self.link.now())
        if heard is not None:
            self.route(*heard)
        if position.quorum and len(position.left) >= position.quorum:
            raise StalledError(f"{len(position.left)} members have left the step, and wait for the others")
        if position.ahead and len(position.ahead) >= position.voices:  # one of them is honest
            raise LeftOutError("the others are too many steps ahead")
        return heard is not None

    async def wait(self, until: float, enough: Callable[[], bool]) -> None:
        """Hear packets until there is enough, or it is too late."""
        while not enough() and self.link.now() < until:
            await self.hear_one(until)

    async def wait_for_blobs(self, missing: Callable[[], int], of: int) -> None:
        """Wait for blobs. The time until more than half are there is measured, whatever liars withhold (SPEC Q8)."""
        until, began = self.pacing.due(), self.link.now()
        await self.wait(until, lambda: 2 * missing() < max(1, of))
        self.pacing.latency.carried(self.link.now() - began)
        await self.wait(until, lambda: not missing())

    async def hear_outside(self, until: float) -> tuple[PeerId, Answer] | None:
        """Wait for the next answer to a peer that is in no step; other frames are routed as usual. Records count from those that
        were asked for them: to check their signatures takes a while [M4]."""
        while self.link.now() < until:
            heard = await self.link.receive(until)
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
        slot, frame, position = packet.slot, packet.frame, self.position
        if isinstance(frame, Asked):
            self.catch_up.hear(sender, slot, frame, position.slot.step if position.slot is not None else -1)
        elif isinstance(frame, Knock):
            self.doorkeeper.hear(sender, slot, frame, position.slot.step if position.slot is not None else -1)
        elif isinstance(frame, Waiting | Busy | RestartCertificate):
            if isinstance(frame, Busy) and position.expects(sender):
                position.busy[sender] = frame.step
            if isinstance(frame, Waiting) and position.slot is not None:
                self._hear_waiting(sender, slot, frame, position.slot)
        elif not (position.expects(sender) or self.catch_up.admits(sender)):
            return
        elif isinstance(frame, BlobWanted):
            most, may_come = _BLOBS_PER_MEMBER * len(position.view.members), position.takes(slot)
            self.exchange.blobs.hand_out(sender, slot, Digest(frame.digest), most=most, may_come=may_come)
        else:
            self._file(sender, packet)

    def _file(self, sender: PeerId, packet: Packet) -> None:
        slot, frame, position = packet.slot, packet.frame, self.position
        proves = isinstance(frame, Certificate) and slot in self.announcer.ended
        if not (position.takes(slot) or proves) or not position.needs(packet):
            position.note_ahead(sender, slot)
            return
        if position.slot is None and position.observing:
            self._keep_for_later(sender, packet)
        elif isinstance(frame, AGREEMENT):
            self._agree(sender, packet, frame)
        else:
            self.exchange.keep(sender, packet)

    def _agree(self, sender: PeerId, packet: Packet, frame: Agreement) -> None:
        slot, ended = packet.slot, self.announcer.ended
        proves = isinstance(frame, Certificate) and slot in ended
        if slot == self.position.slot:
            self.announcer.hear(sender, slot, frame)
        elif isinstance(frame, Certificate) and proves:
            ended.hear(sender, slot, frame, self.link.now())
        elif self.position.is_ahead(slot):
            self.early_frames.put(sender, packet, self.position.most_early)
        if proves:
            ended.prove(slot, self.position.view.step)

    def take_up(self, slot: Slot) -> None:
        """Route the packets that came for this slot before this peer reached it."""
        for sender, packet in self.early_frames.take(slot):
            self.route(sender, packet)

    def _keep_for_later(self, sender: PeerId, packet: Packet) -> None:
        first = self.position.first_needed(packet.slot)
        if packet.slot.step >= first:
            self.early_frames.drop_before(first, sender)
            self.early_frames.put(sender, packet, self.position.most_early)

    def _hear_waiting(self, sender: PeerId, slot: Slot, frame: Waiting, here: Slot) -> None:
        """Answer a member that is in no step (SPEC B5). An observer stops when a quorum has left the step. A member does not
        leave on anybody's word: liars would say so to some members, and go on with the rest."""
        position = self.position
        if not position.observing and frame.step <= here.step:
            self.outlet.send(sender, slot, Busy(here.step))
        if position.observing and frame.step == here.step and frame.incarnation > here.incarnation:
            position.left |= {sender} & position.view.members
