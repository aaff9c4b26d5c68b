"""Lies on the wire: different things to different peers, nothing to some, garbage, replays, corrupted blobs.

A wrapper around a liar's line. It bends what the liar's own, otherwise honest, code sends.
"""

from collections.abc import Callable, Iterator, Mapping

from troth.crypto import Context, Identity, PeerId, Stream
from troth.protocol.agreed import AgreedChannel, Line
from troth.protocol.announce import complaint_bytes, view_bytes
from troth.protocol.frames import (
    BlobSent,
    Certificate,
    Chained,
    Complaint,
    Frame,
    Packet,
    PartSent,
    PartShown,
    RecordSigned,
    Value,
    View,
)
from troth.protocol.messages import (
    Accuse,
    Announced,
    Clip,
    Commit,
    Malformed,
    Message,
    Phase,
    Report,
    Reveal,
    Vote,
    decode,
    seal,
)

CONDUCTS = {
    "equivocate": "say one thing to some and another to others",
    "selective": "say it to some only",
    "mute": "say nothing in some announcements",
    "hide-views": "hand the view to some only",
    "false-incomplete": "claim that values are missing",
    "hide-certificates": "keep certificates to oneself",
    "complain": "complain without reason, to some",
    "withhold-parts": "send no part to some owners",
    "corrupt-parts": "send parts with a flipped bit, or a wrong path",
    "refuse-blobs": "hand out no aggregate and show no part",
    "unsigned-record": "sign no record",
    "replay": "send old packets again",
    "garbage": "send frames with wrong signatures",
    "late": "let everything arrive late",
}


class LateChannel(AgreedChannel):
    """For those who decide what to say only when they have heard the others."""

    async def announce_last(
        self, context: Context, choose: Callable[[Mapping[PeerId, Announced]], Message | None]
    ) -> Mapping[PeerId, Announced]:
        running = self._begin(context)
        due = (running.deadline or self._line.now()) - 2.1 * self._pace.delta  # else it would come too late for some
        await self._wait(due, lambda: len(running.heard) >= len(self._members) - 1)
        opened = {peer: self._tools.open(context, peer, envelope) for peer, envelope in running.heard.items()}
        message = choose({peer: said for peer, said in opened.items() if not isinstance(said, Malformed)})
        if message is not None:
            running.say(seal(self._identity, context, message), self._line.now())
        return await self._finish(context, running)


class LyingLine:
    """Bends what is sent, with a chance for each packet and each conduct that was chosen."""

    def __init__(
        self, line: Line, identity: Identity, conducts: frozenset[str], zeal: float, start: int, draw: Stream
    ) -> None:
        self._line = line
        self._zeal = zeal  # how often it lies where it could
        self._start = start  # the step from which on it does
        self._step = 0
        self._identity = identity
        self._conducts = conducts
        self._draw = draw
        self._others: dict[bytes, Value] = {}
        self._sent: list[Packet] = []
        self.lies: dict[str, int] = {}

    def now(self) -> float:
        return self._line.now()

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        return await self._line.receive(until)

    def send(self, to: PeerId, packet: Packet) -> None:
        self._step = packet.place.step
        for frame in self._bent(to, packet):
            self._line.send(to, Packet(packet.place, frame))
        if self._does("replay", 0.1) and self._sent:
            self._line.send(to, self._sent[int(self._draw.integers(len(self._sent), 1)[0])])
        if len(self._sent) < 200:
            self._sent.append(packet)

    def _does(self, conduct: str, chance: float = 0.5) -> bool:
        if conduct not in self._conducts or self._step < self._start:
            return False
        if float(self._draw.uniform(1)[0]) >= chance * self._zeal:
            return False
        self.lies[conduct] = self.lies.get(conduct, 0) + 1
        return True

    def _bent(self, to: PeerId, packet: Packet) -> Iterator[Frame]:
        frame, place = packet.frame, packet.place
        if self._does("garbage", 0.1):
            yield View(bytes(32), bytes(64))
            yield Certificate(bytes(32), {to: bytes(64)}, {to: bytes(64)})
        if self._does("complain", 0.1):
            yield Complaint(self._identity.sign(complaint_bytes(place)))
        match frame:
            case Value():
                if self._does("mute", 0.2) or self._does("selective"):
                    return
                yield self._other(packet, frame) if self._does("equivocate") else frame
            case View():
                if self._does("hide-views"):
                    return
                if self._does("false-incomplete", 0.2):
                    yield View(None, self._identity.sign(view_bytes(place, None)))
                else:
                    yield frame
            case Certificate() | Chained():
                if not self._does("hide-certificates"):
                    yield frame
            case PartSent():
                if self._does("withhold-parts", 0.2):
                    return
                if self._does("corrupt-parts", 0.2):
                    yield PartSent(frame.part, bytes(len(frame.blob)), frame.path)
                else:
                    yield frame
            case BlobSent() | PartShown():
                if not self._does("refuse-blobs"):
                    yield frame
            case RecordSigned():
                if not self._does("unsigned-record"):
                    yield frame
            case _:
                yield frame

    def _other(self, packet: Packet, value: Value) -> Value:
        """Another message for the same place, as validly signed as the first."""
        key = bytes(value.envelope.signature)
        if key not in self._others:
            message = decode(Phase(packet.place.phase), value.envelope.payload)
            assert not isinstance(message, Malformed)
            self._others[key] = Value(seal(self._identity, packet.place, _changed(message)))
        return self._others[key]


def _changed(message: Message) -> Message:
    match message:
        case Commit():
            return Commit(message.root, bytes(32), message.coin_b, message.hardware)
        case Clip():
            return Clip(message.centers[:-1], message.coin_a, message.coin_b, message.missing)
        case Reveal():
            return Reveal(bytes(32), message.held)
        case Report():
            return Report(bytes(len(message.numbers)) or bytes(8))
        case Accuse():
            return Accuse(message.accusations, bytes(32))
        case Vote():
            return Vote(message.ballots[:-1])
