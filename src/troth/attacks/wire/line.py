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
    false_knock,
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
from troth.crypto import Context, Digest, Identity, PeerId, Stream
from troth.protocol.broadcast.channel import AgreedChannel, Line
from troth.protocol.wire.frames import (
    Begun,
    BlobSent,
    Certificate,
    Chained,
    Frame,
    Packet,
    PartSent,
    PartShown,
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

CONDUCTS = {
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
        self, context: Context, choose: Callable[[Mapping[PeerId, Announced]], Message | None]
    ) -> Mapping[PeerId, Announced]:
        if self._looks_on:
            return await self.announce(context, Vote(()))  # it says nothing
        running = self._begin(context)
        due = (running.deadline or self._line.now()) - 2.1 * self.pace.delta  # else it would come too late for some
        await self._wait(due, lambda: len(running.heard) >= len(self._members) - 1)
        opened = {peer: self._tools.open(context, peer, envelope) for peer, envelope in running.heard.items()}
        message = choose({peer: said for peer, said in opened.items() if not isinstance(said, Malformed)})
        if message is not None:
            running.say(seal(self._identity, context, message), self._line.now())
        return await self._finish(context, running)


class LyingLine:
    """Bends what is sent, with a chance for each packet and each conduct that was chosen."""

    def __init__(
        self,
        line: Line,
        identity: Identity,
        conducts: frozenset[str],
        zeal: float,
        start: int,
        draw: Stream,
        fellows: Mapping[PeerId, Identity] = MappingProxyType({}),  # liars, who sign for each other
    ) -> None:
        self._line = line
        self._zeal = zeal  # how often it lies where it could
        self._start = start  # the step from which on it does
        self._step = 0
        self._identity = identity
        self._me = identity.peer
        self._conducts = conducts
        self._draw = draw
        self._met: dict[PeerId, int] = {}  # to whom it has sent something, and in which step last
        self._foe: PeerId | None = None
        self._heard: dict[Context, dict[PeerId, Value]] = {}  # in this step and later ones
        self._instead: dict[Context, Value | None] = {}  # what it tells everyone in place of the truth, in this step
        self._others: dict[bytes, Value] = {}
        self._two_sides: dict[Context, dict[PeerId, Value] | None] = {}  # whom it told what, if it forges a certificate
        self._last_round = LastRound(identity, fellows, draw)
        self._fellows = frozenset(fellows)
        self._hoarded: dict[Context, bool] = {}  # in which announcements of this step
        self._onlookers: set[PeerId] = set()  # who asked what has happened, and is no member
        self._sent: list[Packet] = []
        self.lies: dict[str, int] = {}
        self.free: Callable[[], bool] = lambda: True  # whether it does not wait for something

    def follow(self, channel: AgreedChannel) -> None:
        """Lies that need the right moment keep the pace that its own code keeps."""
        self._last_round.delta = lambda: channel.pace.delta

    def now(self) -> float:
        return self._line.now()

    def gone(self) -> frozenset[PeerId]:
        return self._line.gone()

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        while True:
            wakes = min(until, self._last_round.next_due)
            heard = await self._line.receive(wakes)
            for to, late in self._last_round.due(self.now()):
                self._line.send(to, late)
            if heard is not None or (wakes >= until and not self._last_round.waits(self.now())):
                break
            until = max(until, self.now() + _MOMENT)
        if heard is not None:
            self._listen(*heard)
        return heard

    def _listen(self, sender: PeerId, packet: Packet) -> None:
        frame = packet.frame
        if isinstance(frame, Value | View):
            self._last_round.hears(sender, packet.place, frame, self.now())
        match frame:
            case Value():
                self._heard.setdefault(packet.place, {}).setdefault(sender, frame)
            case Chained():
                for to, instead in self._last_round.began(sender, packet.place, self.now()):
                    self._line.send(to, Packet(packet.place, instead))
            case SyncWanted():
                self._onlookers.add(sender)

    def send(self, to: PeerId, packet: Packet) -> None:
        if isinstance(packet.frame, Value) and packet.place.step > self._step:
            self._begin(packet.place.step)
        if isinstance(packet.frame, Value):
            self._last_round.tells(to, packet.place, packet.frame, self.now())
        if isinstance(packet.frame, View):
            self._mislead(packet.place)
        if not self._shuns(to):
            for frame in self._frames(to, packet):
                self._line.send(to, Packet(packet.place, frame))
            for again in self._again(packet.place):
                self._line.send(to, again)
        self._met[to] = self._step
        if len(self._sent) < 200:
            self._sent.append(packet)

    def _begin(self, step: int) -> None:
        """With what belongs to earlier steps forgotten."""
        self._step = step
        self._heard = {place: said for place, said in self._heard.items() if place.step >= step}
        self._instead.clear()
        self._others.clear()
        self._two_sides.clear()
        self._hoarded.clear()
        self._last_round.forget(step)

    # Whether

    def _would(self, conduct: str) -> bool:
        return conduct in self._conducts and self._step >= self._start and self.free()

    def _does(self, conduct: str, chance: float = 0.5) -> bool:
        if not self._would(conduct) or float(self._draw.uniform(1)[0]) >= chance * self._zeal:
            return False
        self._count(conduct)
        return True

    def _count(self, conduct: str) -> None:
        self.lies[conduct] = self.lies.get(conduct, 0) + 1

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
        frame, place = packet.frame, packet.place
        for conduct in filter(self._would, _DELAYED):
            self._count(conduct)
        yield from self._added(to, place)
        match frame:
            case Value():
                yield from self._value(to, place, frame)
            case View():
                yield from self._view(to, place, frame)
            case Certificate() | Chained():
                yield from self._kept_back(place, frame)
            case PartSent() | PartShown() | BlobSent():
                yield from self._blob(frame)
            case Waiting() | Begun() if self._does("mislead"):
                yield false_waiting(frame, self._draw)
            case _:
                yield frame

    def _added(self, to: PeerId, place: Context) -> Iterator[Frame]:
        """What nobody asked for."""
        if self._does("garbage", 0.1):
            yield View(bytes(32), bytes(64))
            yield Certificate(bytes(32), {to: bytes(64)}, {to: bytes(64)})
        said = self._heard.get(place)
        if said and self._does("impersonate", 0.1):
            victim = pick(self._draw, sorted(said))
            members = {self._me, to, *(peer for peer, step in self._met.items() if step == self._step)}
            yield from impersonations(self._identity, place, victim, said[victim], members, self._draw)

    def _again(self, place: Context) -> Iterator[Packet]:
        if self._does("flood", 0.02):
            yield from early_and_large(self._identity, place)
        if self._sent and self._does("replay", 0.1):
            yield pick(self._draw, self._sent)
        if not self._would("replay-elsewhere"):
            return
        earlier = [packet for packet in self._sent if packet.place.step < place.step]
        if earlier and self._does("replay-elsewhere", 0.1):
            frame = pick(self._draw, earlier).frame
            yield Packet(place, frame)
            elsewhere = (
                place._replace(run=Digest(bytes(32))),
                place._replace(step=place.step + 1),
                place._replace(attempt=place.attempt + 1),
                place._replace(phase=place.phase % Phase.VOTE + 1),
                place._replace(incarnation=place.incarnation + 1),
            )
            yield Packet(pick(self._draw, elsewhere), frame)

    def _mislead(self, place: Context) -> None:
        """Before others can say how it ended."""
        said = {peer: value.envelope for peer, value in self._heard.get(place, {}).items()}
        for onlooker in sorted(self._onlookers - said.keys()) if said else ():
            if self._does("mislead", 1.0):
                self._line.send(onlooker, Packet(place, false_decision(said, self._draw)))

    def _value(self, to: PeerId, place: Context, value: Value) -> Iterator[Frame]:
        if self._does("mute", 0.2) or self._does("selective"):
            return
        if place.phase == Phase.COMMIT and self._keeps_commit(place) and self._hoards(to):
            return
        if place not in self._two_sides:
            self._two_sides[place] = {} if self._does("forged-certificate", 0.2) else None
        sides = self._two_sides[place]
        if sides is not None:
            sides[to] = pick(self._draw, (value, self._other(place, value)))
            yield sides[to]
            return
        if place not in self._instead:
            payload = self._false_payload(place, value.envelope.payload)
            self._instead[place] = None if payload is None else announcing(self._identity, place, payload)
        if self._does("equivocate"):
            yield self._other(place, value)
        else:
            yield self._instead[place] or value

    def _hoards(self, to: PeerId) -> bool:
        """To all honest peers but one, the same for all liars: it alone is to hold what makes a quorum."""
        honest = sorted(self._met.keys() - self._fellows)
        return self._would("hoard-signatures") and bool(honest) and to not in self._fellows and to != honest[0]

    def _keeps_commit(self, place: Context) -> bool:
        """Signatures under the last record travel in it."""
        if place not in self._hoarded:
            self._hoarded[place] = self._does("hoard-signatures")
        return self._hoarded[place]

    def _false_payload(self, place: Context, payload: bytes) -> bytes | None:
        """Decided once for an announcement: said to some only, it would be an equivocation and no more."""
        phase = Phase(place.phase)
        if self._does("malformed", 0.2):
            return malformed(phase, payload, self._draw)
        if self._does("oversized", 0.05):
            return oversized(phase, payload)
        message = _decoded(phase, payload) if phase in (Phase.COMMIT, Phase.CLIP, Phase.REPORT) else None
        if isinstance(message, Clip | Report) and self._does("non-finite", 0.3):
            return encode(not_finite(message, self._draw))
        gone = sorted(peer for peer, step in self._met.items() if step < self._step - 1)
        if isinstance(message, Commit) and gone and self._does("false-knock"):
            return encode(false_knock(message, pick(self._draw, gone), self._draw))
        if isinstance(message, Commit) and self._does("unsigned-record"):
            return encode(msgspec.structs.replace(message, signature=None))
        if isinstance(message, Commit) and self._does("false-record"):
            return encode(false_signature(message, self._identity, place))
        return None

    def _other(self, place: Context, value: Value) -> Value:
        """Another message for the same place, as validly signed as the first."""
        key = bytes(value.envelope.signature)
        if key not in self._others:
            message = _decoded(Phase(place.phase), value.envelope.payload)
            self._others[key] = value if message is None else Value(seal(self._identity, place, another(message)))
        return self._others[key]

    def _view(self, to: PeerId, place: Context, view: View) -> Iterator[Frame]:
        if self._does("hide-views"):
            return
        if self._last_round.hides(place, view, lambda: "late-certificate" in self._conducts):
            self._count("late-certificate")
            return  # from the beginning and always: it needs all liars, and they do not last
        false, said, sides = self._instead.get(place), self._heard.get(place, {}), self._two_sides.get(place)
        if sides and to in sides:
            yield from forged_certificate(self._identity, place, {**said, self._me: sides[to]})
        elif self._does("false-incomplete", 0.2):
            yield signed_view(self._identity, place, None)
        elif self._does("two-views", 0.7):
            yield signed_view(self._identity, place, pick(self._draw, (None, self._draw.words(4).tobytes())))
        elif false is not None and view.values is not None:  # else the lie would never be certified
            yield signed_view(self._identity, place, values_digest({**said, self._me: false}))
        else:
            yield view

    def _kept_back(self, place: Context, frame: Certificate | Chained) -> Iterator[Frame]:
        if self._does("hide-certificates") or self._last_round.keeps(place, frame):
            return
        false = self._instead.get(place)
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
