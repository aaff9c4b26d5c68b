"""A peer that listens: a small real exchange is recorded, damaged, and handed to an announcement or a channel.

All others lie: their keys are known here, so what they say may be validly signed and still be anything.
"""

import gc
import sys
from collections.abc import Coroutine, Sequence
from functools import cache
from random import Random
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, get_args

import msgspec

from tests.fuzz.drawn import drawn
from tests.fuzz.mutate import altered, damaged
from tests.protocol.wire.examples import EXAMPLES
from troth.crypto import Digest, Identity, PeerId, Slot, derive, signed_bytes
from troth.protocol.broadcast.announcement import Announcement, Timing, chain_bytes
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.link import PacketLink
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.channel import AttemptView, Disclose, Forward, Gather, Scatter
from troth.protocol.core.parts import ProvenPart
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.frames import AGREEMENT, Chained, Decided, Frame, Packet, Value, decode_packet, encode_packet
from troth.protocol.wire.messages import Envelope, Malformed, Message, Phase
from troth.protocol.wire.phases import phase_of, seal
from troth.protocol.wire.primitives import Primitives
from troth.workshop.chaos.virtual_time import VirtualTime

IDS = sorted((Identity.from_secret(derive(0, "fuzz", k)) for k in range(4)), key=lambda one: one.peer)
ME, LIARS, STRANGER = IDS[0], IDS[1:], Identity.from_secret(derive(0, "fuzz", "stranger"))
SENDERS = (*(one.peer for one in LIARS), ME.peer, STRANGER.peer)
MEMBERS = frozenset(one.peer for one in IDS)
DISPUTED_PEER = LIARS[2].peer  # the link from it to ME is disputed, and others relay
DISPUTED_LINKS = {ME.peer: frozenset({DISPUTED_PEER}), DISPUTED_PEER: frozenset({ME.peer})}
RUN = Digest(derive(0, "fuzz", "run"))
MOST_BYTES = 1 << 20  # of one packet
TOOLS = Primitives()
ANNOUNCED: dict[Phase, Message] = {phase_of(message): message for message in reversed(EXAMPLES)}
BLOB = bytes(range(64))
Sender = int  # a number in SENDERS


class Delivery(NamedTuple):
    """Some bytes on their way: when they arrive, and whose link they come from."""

    at: float
    sender: Sender
    raw: bytes


class Fed(NamedTuple):
    """Number of inputs, and of those that were taken for what they claim to be."""

    inputs: int
    accepted: int


_SESSION = msgspec.msgpack.Decoder(list[Delivery])


def session_bytes(deliveries: Sequence[Delivery]) -> bytes:
    """A session as one input, so that it can be written down and fed again."""
    return msgspec.msgpack.encode(deliveries)


def session_of(raw: bytes) -> list[Delivery]:
    return sorted(_SESSION.decode(raw))


# The channel


class PreparedLink:
    """A `PacketLink` that hands out prepared packets, each at its time; after that there is only silence."""

    def __init__(self, packets: Sequence[tuple[float, PeerId, Packet]]) -> None:
        self._packets = sorted(packets, key=lambda packet: packet[0], reverse=True)
        self._now = 0.0
        self._calls = 0
        self.sent = 0

    @property
    def waiting(self) -> int:
        return len(self._packets)

    def now(self) -> float:
        return self._now

    def send(self, to: PeerId, packet: Packet) -> None:
        assert isinstance(decode_packet(encode_packet(packet), 2 * MOST_BYTES), Packet), "an honest peer sends this"
        self.sent += 1

    def gone(self) -> frozenset[PeerId]:
        return frozenset()

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        self._calls += 1
        assert self._calls < 1_000_000, "this does not end"
        if self._packets and self._packets[-1][0] <= until:
            at, sender, packet = self._packets.pop()
            self._now = max(self._now, at)
            return sender, packet
        self._now = max(self._now, until)
        return None


def channel_on(
    link: PacketLink, identity: Identity = ME, *, memory: int = Timeouts.memory, observing: bool = False
) -> BroadcastChannel:
    return BroadcastChannel(identity, link, Timeouts(memory=memory), TOOLS, observing=observing)


async def one_step(channel: BroadcastChannel, me: PeerId, step: int = 0, *, mute: bool = False) -> None:
    """Every call of the channel, in the order in which a step makes them. A mute peer joins at the second phase."""

    def at(phase: Phase) -> Slot:
        return Slot(RUN, step, phase)

    order = [one.peer for one in IDS]
    mine, proven, digest = order.index(me), ProvenPart(Blob(BLOB), (Digest(bytes(32)),)), TOOLS.digest(BLOB)
    shown = {mine: {me: proven}}
    view, expected, ask = AttemptView(MEMBERS, DISPUTED_LINKS), {mine: MEMBERS}, {order.index(DISPUTED_PEER): MEMBERS}
    for phase in (phase for phase in Phase if phase in ANNOUNCED):
        if mute and phase == Phase.COMMIT:
            continue
        await channel.announce(at(phase), ANNOUNCED[phase], view)
        if phase == Phase.COMMIT:
            sent = {part: (owner, proven) for part, owner in enumerate(order)}
            await channel.exchange(at(Phase.CLIP), Scatter(sent, expected), view)
            await channel.exchange(at(Phase.CLIP), Disclose(shown, [(1, order[1]), (2, order[2])], 1), view)
            forwarded = {(part, me): ((owner,), proven) for part, owner in enumerate(order)}
            wanted = [(mine, DISPUTED_PEER)]
            fits = Forward(forwarded, wanted, lambda _, found: found == proven)
            await channel.exchange(at(Phase.CLIP), fits, view)
        if phase == Phase.CLIP:
            await channel.exchange(at(Phase.CLIP), Gather({mine: Blob(BLOB)}, {0: digest}, ask), view)
        if phase == Phase.REVEAL:
            lacking = {1: digest, 2: Digest(bytes(32))}
            everyone = dict.fromkeys(lacking, MEMBERS)
            await channel.exchange(at(Phase.REVEAL), Gather({}, lacking, everyone), view)
        if phase == Phase.ACCUSE:
            await channel.exchange(at(Phase.VOTE), Disclose(shown, [(1, order[1])], 1), view)
    for _ in (channel.equivocations(step), channel.blame(), channel.rejoins(step + 1), channel.latencies(step)):
        pass  # a step asks for these besides


def run_alone(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end: a prepared link never makes anybody wait."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("somebody waits for something that no link gives")


@cache
def recorded() -> tuple[tuple[tuple[float, Sender, Packet], ...], ...]:
    """Packets that really reached this peer in a step: everyone takes part; one is silent at first, so that chains travel."""
    return tuple(_record(mute) for mute in (None, LIARS[1]))


def _record(mute: Identity | None) -> tuple[tuple[float, Sender, Packet], ...]:
    heard: list[tuple[float, Sender, Packet]] = []

    def watch(now: float, sender: PeerId, to: PeerId, packet: Packet, delays: Sequence[float]) -> None:
        if to == ME.peer:
            heard.extend((now + delay, SENDERS.index(sender), packet) for delay in delays)

    time: VirtualTime[None] = VirtualTime(lambda *_: (0.05,), watch)
    members = {one.peer: one_step(channel_on(time.link(one.peer), one), one.peer, mute=one is mute) for one in IDS}
    time.run(members, most_events=10_000)
    return tuple(heard)


def fresh_session(random: Random, packets: int) -> list[Delivery]:
    """So many packets of a recording, one after another, as they came."""
    recording = random.choice(recorded())
    first = random.randrange(max(1, len(recording) - packets))
    return [Delivery(at, sender, encode_packet(packet)) for at, sender, packet in recording[first : first + packets]]


def hostile_session(random: Random, packets: int, end_share: float = 0.1) -> list[Delivery]:
    """Mostly real packets, each of them perhaps damaged, signed again, at another time, or from somebody else.

    With probability `end_share` it says instead how the announcement ended, as observers hear it.
    """
    recording = random.choice(recorded())
    out = []
    for number in range(packets):
        at, sender, packet = recording[
            number % len(recording) if random.random() < 0.8 else random.randrange(len(recording))
        ]
        if random.random() < 0.15:
            at = random.uniform(0, 30)
        if random.random() < 0.1:
            sender = random.randrange(len(SENDERS))
        raw = _hostile(packet, sender, random)
        if random.random() < end_share:
            ended = Packet(packet.slot, _said_to_be_decided(packet.slot, random.choice((0,) * 9 + (1, 2))))
            raw = encode_packet(ended) if random.random() < 0.8 else _hostile(ended, sender, random)
        out.append(Delivery(at, sender, raw))
    return out


def _hostile(packet: Packet, sender: int, random: Random) -> bytes:
    raw = encode_packet(packet)
    match random.randrange(10):
        case 0 | 1 | 2:
            return raw
        case 3 | 4:
            return damaged(raw, random)
        case 5:
            return altered(raw, random)
        case 6 | 7:
            return encode_packet(Packet(packet.slot, signed_again(packet, sender, random)))
        case 8:
            return encode_packet(Packet(packet.slot, drawn(random.choice(get_args(Frame)), random)))
        case _:
            return encode_packet(Packet(_elsewhere(packet.slot, random), packet.frame))


@cache
def _said_to_be_decided(slot: Slot, version: int) -> Decided:
    """The end of that announcement, or one of two lies about it: the same from all who tell it."""
    random = Random(version)
    said: dict[bytes, Envelope] = {
        SENDERS[sender]: packet.frame.envelope
        for _, sender, packet in recorded()[0]
        if packet.slot == slot and isinstance(packet.frame, Value)
    }
    if version == 0:
        return Decided(said, {})
    lie = signed_value(LIARS[0], slot, random.randbytes(50))
    stranger: bytes = STRANGER.peer
    return Decided({**said, LIARS[0].peer: lie, stranger: lie}, {LIARS[1].peer: (lie, lie), stranger: (lie, lie)})


def _elsewhere(slot: Slot, random: Random) -> Slot:
    return random.choice(
        (
            slot._replace(step=random.choice((0, 1, 2, 2**62 - 1))),
            slot._replace(phase=random.randint(1, max(Phase))),
            slot._replace(attempt=random.choice((1, 2, 16, 17, 2**16 - 1))),
            slot._replace(incarnation=random.choice((1, 2**32 - 1))),
            slot._replace(run=Digest(random.randbytes(32))),
        )
    )


def signed_again(packet: Packet, sender: int, random: Random) -> Frame:
    """A frame that a liar may send for this slot: any payload under its own signature, alone or in a chain of all liars."""
    liar = LIARS[sender % len(LIARS)]
    frame = packet.frame
    payload = frame.envelope.payload if isinstance(frame, Value | Chained) else b"\x91\xc0"
    payload = random.choice((damaged(payload, random), random.randbytes(random.randrange(200)), b""))
    digest, envelope = TOOLS.digest(payload), signed_value(liar, packet.slot, payload)
    if random.random() < 0.5:
        return Value(envelope)
    signers = random.sample(LIARS, random.randint(0, len(LIARS)))
    chain: dict[bytes, bytes] = {one.peer: one.sign(chain_bytes(packet.slot, liar.peer, digest)) for one in signers}
    chain |= {random.randbytes(32): random.randbytes(64) for _ in range(random.choice((0, 0, 3)))}
    return Chained(liar.peer, envelope, chain)


def signed_value(liar: Identity, slot: Slot, payload: bytes) -> Envelope:
    return Envelope(payload, liar.sign(signed_bytes(slot, liar.peer, TOOLS.digest(payload))))


def feed_channel(deliveries: Sequence[Delivery]) -> Fed:
    """A step of an honest peer with these packets: it must come to its end, whatever the packets are."""
    packets = decoded(deliveries)
    link = PreparedLink(packets)
    run_alone(one_step(channel_on(link), ME.peer))
    assert link.sent > 0, "it has said nothing"
    return Fed(len(deliveries), len(packets))


def feed_observer(deliveries: Sequence[Delivery]) -> Fed:
    """The same for an observer."""
    packets = decoded(deliveries)
    run_alone(one_step(channel_on(PreparedLink(packets), observing=True), ME.peer))
    return Fed(len(deliveries), len(packets))


def decoded(deliveries: Sequence[Delivery]) -> list[tuple[float, PeerId, Packet]]:
    packets = []
    for at, sender, raw in deliveries:
        packet = decode_packet(raw, MOST_BYTES)
        if not isinstance(packet, Malformed):
            packets.append((at, SENDERS[sender % len(SENDERS)], packet))
    return packets


# One announcement

COMMIT_SLOT = Slot(RUN, 0, Phase.COMMIT)
MINE = seal(ME, COMMIT_SLOT, ANNOUNCED[Phase.COMMIT])
TIMING = Timing(start=0.0, allowance=4.0, delta=1.0, relayed=True)  # as the channel's first


def new_announcement() -> Announcement:
    announcement = Announcement(COMMIT_SLOT, ME, MEMBERS, TIMING, TOOLS, DISPUTED_LINKS[ME.peer])
    announcement.say(MINE, 0.0)
    return announcement


def feed_announcement(deliveries: Sequence[Delivery]) -> Fed:
    """It must decide in time, send a bounded number of frames, and let nobody speak for this peer."""
    announcement, out, packets = new_announcement(), 0, decoded(deliveries)
    now = 0.0
    for at, sender, packet in packets:
        now = max(now, at)
        if isinstance(packet.frame, AGREEMENT):
            announcement.hear(sender, packet.frame, now)
        out += len(announcement.take())
    for _ in range(4 * len(IDS)):
        if announcement.deadline is not None:
            now = max(now, announcement.deadline)
            announcement.tick(now)
            out += len(announcement.take())
    assert announcement.decision is not None, "it does not end"
    assert announcement.decision.said.get(ME.peer) == MINE, "somebody spoke for an honest peer"
    assert out <= 16 * len(IDS), f"{out} frames came out of one announcement"
    return Fed(len(deliveries), len(packets))


# Memory

_SHARED = (type, ModuleType, FunctionType, MethodType, Primitives, PreparedLink)


def kept_bytes(thing: object) -> int:
    """The size of everything that is reachable from a thing, but for code and the outside world."""
    seen: dict[int, object] = {}
    open_ends = [thing]
    while open_ends:
        one = open_ends.pop()
        if id(one) not in seen and not isinstance(one, _SHARED):
            seen[id(one)] = one
            open_ends.extend(gc.get_referents(one))
    return sum(map(sys.getsizeof, seen.values()))
