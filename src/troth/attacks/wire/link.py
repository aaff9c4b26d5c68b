"""Lies on the wire: different things to different peers, nothing to some, garbage, replays, corrupted blobs.

A wrapper around a liar's line. It bends what the liar's own, otherwise honest, code sends.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from troth.attacks.wire.lies import (
    Blob,
    announcing,
    another,
    early_and_large,
    false_decision,
    false_rejoin,
    false_signature,
    false_waiting,
    forged_certificate,
    impersonations,
    malformed,
    not_finite,
    not_numbers,
    oversized,
    oversized_blob,
    pick,
    signed_view,
    values_digest,
    with_blob,
    with_wrong_path,
)
from troth.attacks.wire.splits import LastRound
from troth.crypto import Digest, Identity, PeerId, Slot, Stream
from troth.protocol.broadcast.channel import AgreedChannel, PacketLink
from troth.protocol.wire.frames import (
    BlobSent,
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
from troth.protocol.wire.messages import (
    Announced,
    Clip,
    Commit,
    Malformed,
    Message,
    Phase,
    Report,
    Vote,
    decode,
    encode,
    seal,
)

WIRE_BEHAVIOURS = {
    "equivocate": "say one thing to some and another to others",
    "selective": "say it to some only",
    "mute": "say nothing in some announcements",
    "hide-views": "hand the view to some only",
    "false-incomplete": "claim that values are missing",
    "two-views": "sign different views for different peers",
    "hide-certificates": "keep certificates to oneself",
    "late-certificate": "keep a certificate for the last round and one peer, and say something else to all meanwhile",
    "forged-certificate": "say two things, and show each side that everyone agrees with it, which nobody signed",
    "withhold-parts": "send no part to some owners",
    "corrupt-parts": "send parts that are not those committed to",
    "wrong-paths": "send parts with a wrong, empty or too long path",
    "refuse-blobs": "hand out no aggregate and show no part",
    "unsigned-record": "commit without a signature under the last record",
    "false-record": "sign something else in place of the last record",
    "false-knock": "claim that somebody who is gone knocks, under a key of one's own",
    "mislead": "tell those who look on something else than what was decided",
    "replay": "send old packets again",
    "replay-elsewhere": "send frames of earlier steps again as if they belonged to this one, or to another run",
    "garbage": "send frames with wrong signatures",
    "impersonate": "send frames that claim to be of somebody else",
    "malformed": "sign what is no message, the same to all",
    "oversized": "sign a message that is too long, or send a blob that is",
    "non-finite": "announce numbers that are none, and send blobs of them",
    "feud": "send nothing at all to one peer, always the same",
    "late": "let everything arrive late",
    "just-in-time": "let everything arrive just before it is due",
    "hoard-signatures": "hand signatures of the record, and sometimes what one commits to, to one honest peer only",
    "flood": "send large frames for what has not begun yet, in kinds that look small",
}
_MOMENT = 0.1  # seconds
_DELAYED = ("late", "just-in-time")  # the network that the liar is on sees to these


class LateChannel(AgreedChannel):
    """For those who decide what to say only when they have heard the others."""

    async def announce_last(
        self, slot: Slot, choose: Callable[[Mapping[PeerId, Announced]], Message | None]
    ) -> Mapping[PeerId, Announced]:
        if self._observing:
            return await self.announce(slot, Vote(()))  # it says nothing
        running = self._begin(slot)
        due = (running.deadline or self._link.now()) - 2.1 * self.timeouts.delta  # else it would come too late for some
        await self._wait(due, lambda: len(running.heard) >= len(self._members) - 1)
        opened = {peer: self._tools.open(slot, peer, envelope) for peer, envelope in running.heard.items()}
        message = choose({peer: said for peer, said in opened.items() if not isinstance(said, Malformed)})
        if message is not None:
            running.say(seal(self._identity, slot, message), self._link.now())
        return await self._finish(slot, running)


class LyingLink:
    """Bends what is sent, with a chance for each packet and each conduct that was chosen."""

    def __init__(
        self,
        link: PacketLink,
        identity: Identity,
        behaviours: frozenset[str],
        intensity: float,
        start: int,
        draw: Stream,
        fellows: Mapping[PeerId, Identity] = MappingProxyType({}),  # liars, who sign for each other
    ) -> None:
        self._link = link
        self._intensity = intensity  # how often it lies where it could
        self._start = start  # the step from which on it does
        self._step = 0
        self._identity = identity
        self._me = identity.peer
        self._behaviours = behaviours
        self._draw = draw
        self._met: dict[PeerId, int] = {}  # to whom it has sent something, and in which step last
        self._foe: PeerId | None = None
        self._heard: dict[Slot, dict[PeerId, Value]] = {}  # in this step and later ones
        self._instead: dict[Slot, Value | None] = {}  # what it tells everyone in place of the truth, in this step
        self._others: dict[bytes, Value] = {}
        self._two_sides: dict[Slot, dict[PeerId, Value] | None] = {}  # whom it told what, if it forges a certificate
        self._last_round = LastRound(identity, fellows, draw)
        self._fellows = frozenset(fellows)
        self._hoarded: dict[Slot, bool] = {}  # in which announcements of this step
        self._observers: set[PeerId] = set()  # who asked what has happened, and is no member
        self._sent: list[Packet] = []
        self.lies: dict[str, int] = {}
        self.free: Callable[[], bool] = lambda: True  # whether it does not wait for something

    def follow(self, channel: AgreedChannel) -> None:
        """Lies that need the right moment keep the pace that its own code keeps."""
        self._last_round.delta = lambda: channel.timeouts.delta

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
                self._heard.setdefault(packet.slot, {}).setdefault(sender, frame)
            case Chained():
                for to, instead in self._last_round.began(sender, packet.slot, self.now()):
                    self._link.send(to, Packet(packet.slot, instead))
            case SyncWanted():
                self._observers.add(sender)

    def send(self, to: PeerId, packet: Packet) -> None:
        if isinstance(packet.frame, Value) and packet.slot.step > self._step:
            self._begin(packet.slot.step)
        if isinstance(packet.frame, Value):
            self._last_round.tells(to, packet.slot, packet.frame, self.now())
        if isinstance(packet.frame, View):
            self._mislead(packet.slot)
        if not self._shuns(to):
            for frame in self._frames(to, packet):
                self._link.send(to, Packet(packet.slot, frame))
            for again in self._again(packet.slot):
                self._link.send(to, again)
        self._met[to] = self._step
        if len(self._sent) < 200:
            self._sent.append(packet)

    def _begin(self, step: int) -> None:
        """With what belongs to earlier steps forgotten."""
        self._step = step
        self._heard = {slot: said for slot, said in self._heard.items() if slot.step >= step}
        self._instead.clear()
        self._others.clear()
        self._two_sides.clear()
        self._hoarded.clear()
        self._last_round.forget(step)

    # Whether

    def _would(self, behaviour: str) -> bool:
        return behaviour in self._behaviours and self._step >= self._start and self.free()

    def _does(self, behaviour: str, chance: float = 0.5) -> bool:
        if not self._would(behaviour) or float(self._draw.uniform(1)[0]) >= chance * self._intensity:
            return False
        self._count(behaviour)
        return True

    def _count(self, behaviour: str) -> None:
        self.lies[behaviour] = self.lies.get(behaviour, 0) + 1

    def _shuns(self, to: PeerId) -> bool:
        """Always, whatever its zeal; whom is drawn as soon as it has met everyone."""
        if not self._would("feud"):
            return False
        if self._foe is None and to in self._met:
            self._foe = pick(self._draw, sorted(self._met))
        if to == self._foe:
            self._count("feud")
        return to == self._foe

    # What

    def _frames(self, to: PeerId, packet: Packet) -> Iterator[Frame]:
        frame, slot = packet.frame, packet.slot
        for behaviour in filter(self._would, _DELAYED):
            self._count(behaviour)
        yield from self._added(to, slot)
        match frame:
            case Value():
                yield from self._value(to, slot, frame)
            case View():
                yield from self._view(to, slot, frame)
            case Certificate() | Chained():
                yield from self._kept_back(slot, frame)
            case PartSent() | PartShown() | BlobSent():
                yield from self._blob(frame)
            case Waiting() | RestartCertificate() if self._does("mislead"):
                yield false_waiting(frame, self._draw)
            case _:
                yield frame

    def _added(self, to: PeerId, slot: Slot) -> Iterator[Frame]:
        """What nobody asked for."""
        if self._does("garbage", 0.1):
            yield View(bytes(32), bytes(64))
            yield Certificate(bytes(32), {to: bytes(64)}, {to: bytes(64)})
        said = self._heard.get(slot)
        if said and self._does("impersonate", 0.1):
            victim = pick(self._draw, sorted(said))
            members = {self._me, to, *(peer for peer, step in self._met.items() if step == self._step)}
            yield from impersonations(self._identity, slot, victim, said[victim], members, self._draw)

    def _again(self, slot: Slot) -> Iterator[Packet]:
        if self._does("flood", 0.02):
            yield from early_and_large(self._identity, slot)
        if self._sent and self._does("replay", 0.1):
            yield pick(self._draw, self._sent)
        if not self._would("replay-elsewhere"):
            return
        earlier = [packet for packet in self._sent if packet.slot.step < slot.step]
        if earlier and self._does("replay-elsewhere", 0.1):
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
        """Before others can say how it ended."""
        said = {peer: value.envelope for peer, value in self._heard.get(slot, {}).items()}
        for observer in sorted(self._observers - said.keys()) if said else ():
            if self._does("mislead", 1.0):
                self._link.send(observer, Packet(slot, false_decision(said, self._draw)))

    def _value(self, to: PeerId, slot: Slot, value: Value) -> Iterator[Frame]:
        if self._does("mute", 0.2) or self._does("selective"):
            return
        if slot.phase == Phase.COMMIT and self._keeps_commit(slot) and self._hoards(to):
            return
        if slot not in self._two_sides:
            self._two_sides[slot] = {} if self._does("forged-certificate", 0.2) else None
        sides = self._two_sides[slot]
        if sides is not None:
            sides[to] = pick(self._draw, (value, self._other(slot, value)))
            yield sides[to]
            return
        if slot not in self._instead:
            payload = self._false_payload(slot, value.envelope.payload)
            self._instead[slot] = None if payload is None else announcing(self._identity, slot, payload)
        if self._does("equivocate"):
            yield self._other(slot, value)
        else:
            yield self._instead[slot] or value

    def _hoards(self, to: PeerId) -> bool:
        """To all honest peers but one, the same for all liars: it alone is to hold what makes a quorum."""
        honest = sorted(self._met.keys() - self._fellows)
        return self._would("hoard-signatures") and bool(honest) and to not in self._fellows and to != honest[0]

    def _keeps_commit(self, slot: Slot) -> bool:
        """Signatures under the last record travel in it."""
        if slot not in self._hoarded:
            self._hoarded[slot] = self._does("hoard-signatures")
        return self._hoarded[slot]

    def _false_payload(self, slot: Slot, payload: bytes) -> bytes | None:
        """Decided once for an announcement: said to some only, it would be an equivocation and no more."""
        phase = Phase(slot.phase)
        if self._does("malformed", 0.2):
            return malformed(phase, payload, self._draw)
        if self._does("oversized", 0.05):
            return oversized(phase, payload)
        message = _decoded(phase, payload) if phase in (Phase.COMMIT, Phase.CLIP, Phase.REPORT) else None
        if isinstance(message, Clip | Report) and self._does("non-finite", 0.3):
            return encode(not_finite(message, self._draw))
        gone = sorted(peer for peer, step in self._met.items() if step < self._step - 1)
        if isinstance(message, Commit) and gone and self._does("false-knock"):
            return encode(false_rejoin(message, pick(self._draw, gone), self._draw))
        if isinstance(message, Commit) and self._does("unsigned-record"):
            return encode(msgspec.structs.replace(message, signature=None))
        if isinstance(message, Commit) and self._does("false-record"):
            return encode(false_signature(message, self._identity, slot))
        return None

    def _other(self, slot: Slot, value: Value) -> Value:
        """Another message for the same place, as validly signed as the first."""
        key = bytes(value.envelope.signature)
        if key not in self._others:
            message = _decoded(Phase(slot.phase), value.envelope.payload)
            self._others[key] = value if message is None else Value(seal(self._identity, slot, another(message)))
        return self._others[key]

    def _view(self, to: PeerId, slot: Slot, view: View) -> Iterator[Frame]:
        if self._does("hide-views"):
            return
        if self._last_round.hides(slot, view, lambda: "late-certificate" in self._behaviours):
            self._count("late-certificate")
            return  # from the beginning and always: it needs all liars, and they do not last
        false, said, sides = self._instead.get(slot), self._heard.get(slot, {}), self._two_sides.get(slot)
        if sides and to in sides:
            yield from forged_certificate(self._identity, slot, {**said, self._me: sides[to]})
        elif self._does("false-incomplete", 0.2):
            yield signed_view(self._identity, slot, None)
        elif self._does("two-views", 0.7):
            yield signed_view(self._identity, slot, pick(self._draw, (None, self._draw.words(4).tobytes())))
        elif false is not None and view.values is not None:  # else the lie would never be certified
            yield signed_view(self._identity, slot, values_digest({**said, self._me: false}))
        else:
            yield view

    def _kept_back(self, slot: Slot, frame: Certificate | Chained) -> Iterator[Frame]:
        if self._does("hide-certificates") or self._last_round.keeps(slot, frame):
            return
        false = self._instead.get(slot)
        mine = isinstance(frame, Chained) and frame.originator == self._me
        if false is None or not mine:  # else its own code passes on the truth that it told nobody
            yield frame

    def _blob(self, frame: Blob) -> Iterator[Frame]:
        if isinstance(frame, PartSent):
            if self._does("withhold-parts", 0.2):
                return
            if self._does("corrupt-parts", 0.2):
                frame = with_blob(frame, bytes(len(frame.blob)))
        elif self._does("refuse-blobs"):
            return
        if not isinstance(frame, BlobSent) and self._does("wrong-paths", 0.3):
            frame = with_wrong_path(frame, self._draw)
        if self._does("oversized", 0.05):
            frame = oversized_blob(frame)
        if self._does("non-finite", 0.3):
            frame = not_numbers(frame)
        yield frame


def _decoded(phase: Phase, payload: bytes) -> Message | None:
    """None where the liar's attack on the protocol has already made something of it that is no message."""
    message = decode(phase, payload)
    return None if isinstance(message, Malformed) else message
