"""Lies on the wire: different things to different peers, nothing to some, garbage, replays, corrupted blobs.

A wrapper around a liar's link. It bends what the liar's own, otherwise honest, code sends.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from troth.crypto import Digest, Identity, PeerId, Slot, Stream
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.link import PacketLink
from troth.protocol.wire.frames import (
    BlobSent,
    Busy,
    Certificate,
    Chained,
    Frame,
    Packet,
    PartSent,
    PartShown,
    RestartCertificate,
    SyncWanted,
    Value,
    View,
    Waiting,
)
from troth.protocol.wire.messages import Phase
from troth.workshop.attacks.broadcasts import Acquaintance, LastRound, LieDraws, LyingAnnouncer
from troth.workshop.attacks.lies import (
    Blob,
    early_and_large,
    false_decision,
    false_waiting,
    impersonations,
    not_numbers,
    oversized_blob,
    pick,
    with_blob,
    with_wrong_path,
)

_MOMENT = 0.1  # seconds
_DELAYED = ("late", "just-in-time")  # the network that the liar is on sees to these
_MOST_REPLAYED = 200  # packets kept to be sent again


class LyingLink:
    """Bends what is sent, with a chance for each packet and each chosen behaviour."""

    def __init__(
        self,
        link: PacketLink,
        identity: Identity,
        behaviours: frozenset[str],
        intensity: float,
        start: int,
        draw: Stream,
        fellows: Mapping[PeerId, Identity] = MappingProxyType({}),  # liars, who sign for each other
        free: Callable[[], bool] = lambda: True,  # false while it waits for something, and behaves
    ) -> None:
        self._link = link
        self._identity = identity
        self._me = identity.peer
        self._draw = draw
        self._draws = LieDraws(behaviours, intensity, start, draw, free)
        self._known = Acquaintance()
        self._announcer = LyingAnnouncer(identity, self._draws, draw, self._known, fellows)
        self._foe: PeerId | None = None
        self._sent: list[Packet] = []
        self.lies = self._draws.counts

    def follow(self, channel: BroadcastChannel) -> None:
        """Lies that need the right moment keep the timeouts that the liar's own code keeps."""
        self._last_round.delta = lambda: channel.pacing.timeouts.delta

    @property
    def _last_round(self) -> LastRound:
        return self._announcer.last_round

    def now(self) -> float:
        return self._link.now()

    def gone(self) -> frozenset[PeerId]:
        return self._link.gone()

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        while True:
            wakes = min(until, self._last_round.next_due)
            heard = await self._link.receive(wakes)
            for to, late in self._last_round.due(self.now()):
                self._link.send(to, late)
            if heard is not None or (wakes >= until and not self._last_round.waits(self.now())):
                break
            until = max(until, self.now() + _MOMENT)
        if heard is not None:
            self._listen(*heard)
        return heard

    def _listen(self, sender: PeerId, packet: Packet) -> None:
        frame = packet.frame
        if isinstance(frame, Value | View):
            self._last_round.hears(sender, packet.slot, frame, self.now())
        match frame:
            case Value():
                self._known.heard.setdefault(packet.slot, {}).setdefault(sender, frame)
            case Chained():
                for to, instead in self._last_round.began(sender, packet.slot, self.now()):
                    self._link.send(to, Packet(packet.slot, instead))
            case SyncWanted():
                self._known.observers.add(sender)

    def send(self, to: PeerId, packet: Packet) -> None:
        if isinstance(packet.frame, Value) and packet.slot.step > self._draws.step:
            self._begin(packet.slot.step)
        if isinstance(packet.frame, Value):
            self._last_round.tells(to, packet.slot, packet.frame, self.now())
        if isinstance(packet.frame, View):
            self._mislead(packet.slot)
        if isinstance(packet.frame, Value) and packet.slot.phase == Phase.ACCUSE and self._draws.does("awake", 1.0):
            following = packet.slot._replace(step=packet.slot.step + 1, attempt=0, phase=Phase.COMMIT)
            self._link.send(to, Packet(following, Busy(following.step)))
        if not self._shuns(to):
            for frame in self._frames(to, packet):
                self._link.send(to, Packet(packet.slot, frame))
            for again in self._again(packet.slot):
                self._link.send(to, again)
        self._known.met[to] = self._draws.step
        if len(self._sent) < _MOST_REPLAYED:
            self._sent.append(packet)

    def _begin(self, step: int) -> None:
        """Forget what belongs to earlier steps."""
        self._draws.step = step
        self._known.forget(step)
        self._announcer.begin(step)

    def _shuns(self, to: PeerId) -> bool:
        """Whether it sends nothing to this peer: always, whatever its intensity, once a foe is drawn among those it has met."""
        if not self._draws.would("cut-link"):
            return False
        if self._foe is None and to in self._known.met:
            self._foe = pick(self._draw, sorted(self._known.met))
        if to == self._foe:
            self._draws.count("cut-link")
        return to == self._foe

    def _frames(self, to: PeerId, packet: Packet) -> Iterator[Frame]:
        frame, slot = packet.frame, packet.slot
        for behaviour in filter(self._draws.would, _DELAYED):
            self._draws.count(behaviour)
        yield from self._added(to, slot)
        match frame:
            case Value():
                yield from self._announcer.value(to, slot, frame)
            case View():
                yield from self._announcer.view(to, slot, frame)
            case Certificate() | Chained():
                yield from self._announcer.kept_back(slot, frame)
            case PartSent() | PartShown() | BlobSent():
                yield from self._blob(frame)
            case Waiting() | RestartCertificate() if self._draws.does("mislead"):
                yield false_waiting(frame, self._draw)
            case _:
                yield frame

    def _added(self, to: PeerId, slot: Slot) -> Iterator[Frame]:
        """Frames that nobody asked for."""
        if self._draws.does("garbage", 0.1):
            yield View(bytes(32), bytes(64))
            yield Certificate(bytes(32), {to: bytes(64)}, {to: bytes(64)})
        said = self._known.heard.get(slot)
        if said and self._draws.does("impersonate", 0.1):
            victim = pick(self._draw, sorted(said))
            members = {self._me, to, *(peer for peer, step in self._known.met.items() if step == self._draws.step)}
            yield from impersonations(self._identity, slot, victim, said[victim], members, self._draw)

    def _again(self, slot: Slot) -> Iterator[Packet]:
        if self._draws.does("flood", 0.02):
            yield from early_and_large(self._identity, slot)
        if self._sent and self._draws.does("replay", 0.1):
            yield pick(self._draw, self._sent)
        if not self._draws.would("replay-elsewhere"):
            return
        earlier = [packet for packet in self._sent if packet.slot.step < slot.step]
        if earlier and self._draws.does("replay-elsewhere", 0.1):
            frame = pick(self._draw, earlier).frame
            yield Packet(slot, frame)
            elsewhere = (
                slot._replace(run=Digest(bytes(32))),
                slot._replace(step=slot.step + 1),
                slot._replace(attempt=slot.attempt + 1),
                slot._replace(phase=slot.phase % Phase.VOTE + 1),
                slot._replace(incarnation=slot.incarnation + 1),
            )
            yield Packet(pick(self._draw, elsewhere), frame)

    def _mislead(self, slot: Slot) -> None:
        """Tell observers a false decision, before others can say how it ended."""
        said = {peer: value.envelope for peer, value in self._known.heard.get(slot, {}).items()}
        for observer in sorted(self._known.observers - said.keys()) if said else ():
            if self._draws.does("mislead", 1.0):
                self._link.send(observer, Packet(slot, false_decision(said, self._draw)))

    def _blob(self, frame: Blob) -> Iterator[Frame]:
        if isinstance(frame, PartSent):
            if self._draws.does("withhold-parts", 0.2):
                return
            if self._draws.does("corrupt-parts", 0.2):
                frame = with_blob(frame, bytes(len(frame.blob)))
        elif self._draws.does("refuse-blobs"):
            return
        if not isinstance(frame, BlobSent) and self._draws.does("wrong-paths", 0.3):
            frame = with_wrong_path(frame, self._draw)
        if self._draws.does("oversized", 0.05):
            frame = oversized_blob(frame)
        if self._draws.does("non-finite", 0.3):
            frame = not_numbers(frame)
        yield frame
