"""Other peers, as the mesh sees them: what a session says beside the protocol, connections and standings, who is a stranger, and
whether a greeting is accepted."""

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Annotated

import msgspec

from troth.crypto import Digest, PeerId, Signature, tagged_hash, verify
from troth.errors import printable
from troth.network.transport.base import Lane, Message, Received, pieces_of
from troth.network.transport.connection import StreamConnection
from troth.protocol.wire.messages import Bytes32, Bytes64, Malformed, Step

VERSION = 14  # raised with every change after which peers would compute something else: they are refused, and nobody is banned
_MOST_BYTES = 1 << 14  # of a session's message
CONTROL_SESSION, CONTROL_PACKET = b"\x00", b"\x01"  # first byte of a control message: a session's, or the protocol's
_LOOK_EVERY_S = 0.05
_FIRST_RETRY_S, _LAST_RETRY_S = 0.2, 10.0
_MOST_HELD = 1 << 23  # bytes for one neighbour that is not connected
STRANGERS_ROOM = 1 << 16  # bytes of one stranger that may wait to be read
_GREETINGS = 4096  # bytes that may wait to be sent beside answers
STRANGERS_QUEUE = 1 << 16  # bytes for one stranger that wait to be sent; beyond them it gets no answer …
STRANGERS_QUEUES = 1 << 24  # … and for all of them: beyond them, whoever has left some unread for longest is hung up on
FIRST_MODEL, HARDWARE = "first model", "hardware class"  # sections that each machine computes, beside the manifest's
_MOST_SHOWN = 140  # letters of a machine: two of them fit into a refusal, beside the advice

_Text = Annotated[str, msgspec.Meta(max_length=500)]


class _SessionMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """A message whose class travels as its name."""


class Hello(_SessionMessage, frozen=True):
    """The first message of each side. Nothing else is heard before it."""

    version: int
    run: Bytes32
    # Digests of the manifest's sections, to say which of them differ.
    sections: Annotated[dict[_Text, Bytes32], msgspec.Meta(max_length=32)]
    member: Bytes32  # its seat: its own key, or the one that its own key succeeds
    delegation: Bytes64 | None  # by the key of the seat, if it is another
    process: Bytes32  # drawn at random when the sender started: two of them with one key are two machines
    machine: _Text = ""  # what it computes with, for people to read where hardware classes differ


class Standing(_SessionMessage, frozen=True):
    """How far the sender is in the run."""

    ready: bool  # it reaches everyone it needs, and waits for them to be ready
    begun: bool
    step: Step


class Refused(_SessionMessage, frozen=True):
    """The sender refuses the connection, and why."""

    why: _Text
    key_in_use: bool = False  # another process with the same key is connected, and alive


class KeyInUse(_SessionMessage, frozen=True):
    """Another process with the receiver's key has tried to connect, and was refused."""


class Goodbye(_SessionMessage, frozen=True):
    """The sender leaves on purpose: nobody needs to wait for it, or to dial it."""


class DialBack(_SessionMessage, frozen=True):
    """The sender asks whether the receiver reaches it at this address."""

    address: Annotated[str, msgspec.Meta(max_length=128, pattern=r"^[!-~]+$")]


class Reached(_SessionMessage, frozen=True):
    """The answer to `DialBack`."""

    yes: bool


SessionMessage = Hello | Standing | Refused | KeyInUse | Goodbye | DialBack | Reached
NOWHERE = Standing(ready=False, begun=False, step=0)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[SessionMessage] = msgspec.msgpack.Decoder(SessionMessage, strict=True)


def encode_session_message(message: SessionMessage) -> bytes:
    return _ENCODER.encode(message)


def decode_session_message(raw: bytes) -> SessionMessage | Malformed:
    if len(raw) > _MOST_BYTES:
        return Malformed(f"{len(raw)} bytes, at most {_MOST_BYTES}")
    try:
        return _DECODER.decode(raw)
    except (ValueError, RecursionError) as error:
        return Malformed(str(error)[:200])


def session_message(lane: Lane, raw: Received) -> SessionMessage | Malformed | None:
    """The session's message that this is; None if it is a packet of the protocol."""
    if lane != Lane.CONTROL or bytes(raw[:1]) != CONTROL_SESSION:
        return None
    return decode_session_message(bytes(raw[1:]))


def delegation_bytes(run: Digest, successor: PeerId) -> bytes:
    """The bytes that a key signs for its successor, which takes its seat on the wire."""
    return tagged_hash("troth/delegation/1", run, successor)


@dataclass
class Neighbour:
    """A member, the successor of one, or a stranger, connected or not."""

    address: str
    seat: PeerId | None = None  # that it has, or was delegated, as its last greeting says
    connection: StreamConnection | None = None
    standing: Standing = NOWHERE
    process: bytes = b""  # at the other end of the last connection, as it says
    lost_at: float = field(default_factory=time.monotonic)
    gone: bool = False  # it is not connected, and said goodbye, or dialling it has failed
    trouble: str = "not reached yet"  # why it is not connected
    asked: bool = False  # this peer has asked it for something, and may get a long answer
    unread_since: float = field(default_factory=time.monotonic)  # an answer that it has not read whole yet
    losses: int = 0  # times that its connection was lost
    earlier_bytes: tuple[int, int] = (0, 0)  # in and out, on connections that are lost
    _held: deque[tuple[float, Lane, Message]] = field(default_factory=deque)
    _held_bytes: int = 0
    _down: asyncio.Event = field(default_factory=asyncio.Event)  # set when a connection is lost

    @property
    def up(self) -> bool:
        return self.connection is not None

    def connect(self, connection: StreamConnection, process: bytes, seat: PeerId) -> None:
        self.connection, self.process, self.seat, self.gone = connection, process, seat, False
        self.unread_since = time.monotonic()
        self._down.clear()

    def answered(self) -> None:
        """Another answer is about to be queued for it; greetings and pings are none."""
        if self.connection is not None and self.connection.queued_bytes <= _GREETINGS:
            self.unread_since = time.monotonic()

    def lose(self) -> None:
        self.earlier_bytes, self.losses = self.bytes, self.losses + 1
        self.connection, self.lost_at, self.trouble = None, time.monotonic(), "lost"
        self._down.set()

    @property
    def bytes(self) -> tuple[int, int]:
        """In and out, so far."""
        now, (heard, sent) = self.connection, self.earlier_bytes
        return (heard, sent) if now is None else (heard + now.bytes_in, sent + now.bytes_out)

    async def goes_down(self) -> None:
        """Wait until its connection is lost. Looking for that every now and then would wake the thread without end."""
        while self.up:
            await self._down.wait()

    async def comes_up(self, seconds: float) -> None:
        """Wait until it is connected, or has not been for so long."""
        until = time.monotonic() + seconds
        while not self.up and time.monotonic() < until:
            await asyncio.sleep(_LOOK_EVERY_S)

    def hold(self, lane: Lane, message: Message) -> None:
        """Keep a message until it is connected again, within a bound: beyond it, messages are dropped."""
        length = sum(map(len, pieces_of(message)))
        if self._held_bytes + length <= _MOST_HELD:
            self._held.append((time.monotonic(), lane, message))
            self._held_bytes += length

    def release(self, since: float) -> list[tuple[Lane, Message]]:
        """The messages that were held since then; older ones are dropped."""
        fresh = [(lane, message) for when, lane, message in self._held if when >= since]
        self._held.clear()
        self._held_bytes = 0
        return fresh


class Redial:
    """The times at which a neighbour is dialled: it waits longer after every failure, until it is connected."""

    def __init__(self, yielding_s: float) -> None:
        """`yielding_s`: seconds in which the other side should dial, if that is its turn."""
        self._yielding_s = yielding_s
        self.connected()

    def connected(self) -> None:
        self._retry_s, self._again = _FIRST_RETRY_S, 0.0

    def tried(self) -> None:
        self._again, self._retry_s = time.monotonic() + self._retry_s, min(_LAST_RETRY_S, self._retry_s * 1.5)

    def is_due(self, lost_at: float, least_s: float) -> bool:
        return time.monotonic() >= max(lost_at + max(self._yielding_s, least_s), self._again)


@dataclass(frozen=True)
class ExpectedConnections:
    """The run as it is now, as far as connections go."""

    members: frozenset[PeerId]
    candidates: frozenset[PeerId] = frozenset()
    addresses: Mapping[PeerId, str] = field(default_factory=dict)  # of members, candidates, and strangers that gave one


class Neighbours:
    """All neighbours of one peer, by key. The event loop changes the table; its properties may be read from any thread."""

    def __init__(self, me: PeerId, addresses: Mapping[PeerId, str]) -> None:
        self.founders = frozenset(addresses)
        self._expected = ExpectedConnections(self.founders)
        self._me = me
        self._heirs: dict[PeerId, PeerId] = {}  # for each seat, the key that showed a delegation last
        self._table = {peer: Neighbour(address) for peer, address in addresses.items() if peer != me}

    def __iter__(self) -> Iterator[tuple[PeerId, Neighbour]]:
        return iter(list(self._table.items()))  # a copy: the table may change meanwhile

    def get(self, peer: PeerId) -> Neighbour | None:
        return self._table.get(peer)

    def of(self, peer: PeerId) -> Neighbour:
        """The neighbour with this key: a founder, or somebody else, who has to dial."""
        return self._table.setdefault(peer, Neighbour(""))

    def has_seat(self, peer: PeerId) -> bool:
        """Whether this key is a candidate's or that of somebody who was ever a member, and not just any that somebody made."""
        now = self._expected
        return any(peer in keys for keys in (self.founders, now.members, now.candidates, now.addresses))

    def greeted(self, peer: PeerId, connection: StreamConnection, process: bytes, seat: PeerId) -> None:
        """Send on this connection from now on; its other side has shown that it may take this seat."""
        self.of(peer).connect(connection, process, seat)
        if peer != seat and self.has_seat(seat):
            self._heirs[seat] = peer

    def knows(self, peer: PeerId) -> bool:
        """Whether it has a seat or a slot, or is the successor of somebody who has: one for each seat, or a member could make as
        many as it likes. Or this peer has asked it, since records that a quorum signed say that it is a member; while this
        peer is in no step, somebody may have come in whom it does not expect. All others are strangers (SPEC M4)."""
        one = self._table.get(peer)
        seat = one.seat if one is not None else None
        heir = seat is not None and self._heirs.get(seat) == peer and self.has_seat(seat)
        return heir or (one is not None and one.asked) or self.has_seat(peer)

    def is_dialled(self, peer: PeerId, neighbour: Neighbour | None = None) -> bool:
        """Whether it is dialled while it is not connected: founders, members that were strangers, and candidates, so that members
        that nobody can reach know them before they need them. Strangers said where, so whoever is gone must not have everyone
        dial there for ever: one that is silent soon has no seat, and no slot. `neighbour`: not if it was forgotten meanwhile."""
        if neighbour is not None and self._table.get(peer) is not neighbour:
            return False
        return any(peer in keys for keys in (self.founders, self._expected.members, self._expected.candidates))

    def most_waiting(self, peer: PeerId) -> int | None:
        """Bytes of a stranger that may wait to be read; None: it is none, as far as this peer knows."""
        return None if self.knows(peer) else STRANGERS_ROOM

    def takes(self, peer: PeerId) -> bool:
        """Whether another message may be queued for it. A crowd that asks and never reads must not fill memory with answers,
        and a connection may queue several aggregates."""
        connection = self._table[peer].connection if peer in self._table else None
        return connection is None or self.most_waiting(peer) is None or connection.queued_bytes <= STRANGERS_QUEUE

    def bound_queues(self) -> None:
        """Hang up on the stranger that has left something unread for longest, if all of them together have too much to read. Not
        on the one with most: that may be one that was answered this moment, while a crowd keeps just less."""
        strangers = [(one, one.connection) for peer, one in self if one.connection is not None and not self.knows(peer)]
        behind = [(one.unread_since, connection) for one, connection in strangers if connection.queued_bytes]
        if sum(connection.queued_bytes for _, connection in behind) > STRANGERS_QUEUES:
            min(behind, key=itemgetter(0))[1].close("too slow: too much is queued for strangers")

    @property
    def connections(self) -> list[StreamConnection]:
        return [one.connection for _, one in self if one.connection is not None]

    @property
    def gone(self) -> frozenset[PeerId]:
        """Peers that said goodbye, or are not connected and could not be dialled (SPEC Q9). Nobody, if fewer than half of the
        members are connected: it may be this peer's own connection that failed."""
        gone = frozenset(peer for peer, one in self if one.gone)
        if not gone:  # as nearly always, and this is asked for every packet
            return gone
        members = [one for peer, one in self if peer in self._expected.members]
        return frozenset() if 2 * sum(one.up for one in members) < len(members) else gone

    def begin(self) -> None:
        """Wait for nobody who is missing when the run begins."""
        for _, neighbour in self:
            neighbour.gone = not neighbour.up

    def expect(self, expected: ExpectedConnections) -> list[PeerId]:
        """Take note of the run as it is now; return members and candidates that are to be dialled from now on."""
        self._expected, new = expected, []
        for peer, address in expected.addresses.items():
            if peer != self._me and self.is_dialled(peer) and address and not self.of(peer).address:
                self._table[peer].address = address
                new.append(peer)
        for peer, _ in self:
            self.forget(peer)
        return new

    def forget(self, peer: PeerId) -> None:
        """Drop a successor that is neither connected nor a member: anybody can make keys and delegate a seat to them."""
        neighbour = self._table[peer]
        if not neighbour.up and not self.has_seat(peer):
            del self._table[peer]
            if neighbour.seat is not None and self._heirs.get(neighbour.seat) == peer:
                del self._heirs[neighbour.seat]


_ADVICE = {
    FIRST_MODEL: "its first model is another than this peer's: compare the versions of PyTorch and of what the task imports, or "
    "begin with a file of weights (troth new --from)",
    HARDWARE: "its machine computes other bits than this one, and audits in this run are exact: compare versions, threads and "
    "'troth doctor', or agree on a manifest with --hardware-deviation",
}


def check_greeting(
    heard: tuple[Lane, Received],
    peer: PeerId,
    mine: Hello,
    members: Set[PeerId],
    banned: Set[PeerId],
    *,
    strangers: bool = False,
) -> Hello | str:
    """The greeting of `peer`, which said this first; or why its connection is refused: it belongs to another run, or may not sit
    where it says. `strangers`: the run's door is open, and any key may come."""
    said = session_message(*heard)
    if isinstance(said, Refused):
        return f"it refuses this peer: {said.why}"
    if not isinstance(said, Hello):
        return "it did not say hello"
    if said.version != VERSION:
        return f"it speaks version {said.version} of the session, and this peer {VERSION}"
    if said.run != mine.run:
        differing = [
            name for name, digest in mine.sections.items() if name not in _ADVICE and digest != said.sections.get(name)
        ]
        return f"another run: the manifests differ in {', '.join(differing) or 'founders or nonce'}"
    member = PeerId(said.member)
    if member not in members and not strangers:
        return "its key is not in this run"
    if {member, peer} & banned:
        return "it is banned from this run"
    # Only the owner of a seat can hand it on: else anybody could make a key and take a seat.
    if member != peer and not _delegated(said, member, peer, Digest(mine.run)):
        return "it claims a seat that is not its own"
    # Else an honest peer with another version of a library would be banned for what it computes.
    wrong = (name for name in _ADVICE if said.sections.get(name) != mine.sections.get(name))
    differing_in = next(wrong, None)
    if differing_in is None:
        return said
    theirs, ours = (printable(machine[:_MOST_SHOWN]) for machine in (said.machine, mine.machine))
    return _ADVICE[differing_in] + (f" (its machine: {theirs}; this one: {ours})" if theirs and ours else "")


def _delegated(said: Hello, member: PeerId, successor: PeerId, run: Digest) -> bool:
    return said.delegation is not None and verify(member, delegation_bytes(run, successor), Signature(said.delegation))
