"""One connection over a stream: reads straight into messages, sends queued ones chunk by chunk, control first, and hangs up when
the other side is gone or hostile.

When it hangs up on the other side:

- nothing was heard for `idle_s` (a byte that TLS has not authenticated was not heard);
- a message is under way and, averaged over `idle_s`, less than SLOWEST_BYTES_PER_SECOND arrived: a message must not take
  a place for ever by trickling. Pings do not count here, other messages do;
- pings without end, anything malformed, more queued bytes than the bound.

Its limits are those of a greeting until `recognise` says that the other side is known (SPEC M4); then it gets those of a member.

While *we* do not read (the queue of received messages is full, or the process was held up), none of this is held
against the other side.

Nobody sends a TLS close_notify: messages have lengths, so a cut is noticed anyway, and a goodbye says why. After a goodbye
we wait a moment for the other side to hang up, so that messages sent before it are not lost with the socket.
"""

import asyncio
import socket
import ssl
import struct
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from troth.crypto.identity import PeerId
from troth.network.transport.base import SLOWEST_BYTES_PER_SECOND, Lane, Message, Received, TransportLimits, pieces_of
from troth.network.transport.framing import (
    MESSAGE_OVERHEAD,
    PING,
    Assembler,
    ChunkKind,
    MalformedError,
    Outbox,
    Throttle,
    goodbye,
    reason_of,
)

CLOSE_S = 1.0  # for the last messages when a connection closes
_ENCRYPTED_BYTES = 64 * 1024  # that wait behind a connection that does not read
_TURN_BYTES = 512 * 1024  # written before others get their turn in the event loop
_BUFFERED_BYTES = 256 * 1024  # encrypted ahead of the socket; a control message waits behind at most that
_JOINED_BYTES = 8 * 1024  # up to here, a header and what follows it travel in one TLS record
_MOST_PINGS = 64  # at once; and over the life of the connection, twenty times as many as we would send
_NOBODY = PeerId(bytes(32))

Vetting = Callable[[ssl.SSLObject], PeerId | str]


class StreamConnection(asyncio.BufferedProtocol):
    """A connection to a *key*: its other side has proved to own `peer`. It promises order within a lane and whole messages or
    none; it does not promise delivery. A message that must arrive is asked for again by the layers above.

    After the other side's first message, its greeting, nothing is read until `recognise`. All methods belong to one event loop.
    It is the Sender that a throttle drives, and the protocol that asyncio drives. Made by a ConnectionPool."""

    def __init__(
        self,
        limits: TransportLimits,
        throttle: Throttle | None,
        *,
        dialled: bool,
        source: str,
        vet: Vetting,
        made: Callable[["StreamConnection"], None],
        lost: Callable[["StreamConnection"], None],
    ) -> None:
        self.peer = _NOBODY  # until the handshake is done
        self.dialled = dialled  # whether this side began it
        self.source = source  # the address that it came from, as crowds are counted
        self.known = False
        self.bytes_in = 0  # so far: messages and their framing, without the cost of encryption
        self.bytes_out = 0
        self.waiting_bytes = 0  # received and not taken yet, with what it costs to keep them
        self.refusal = ""  # why the other side was turned away after the handshake
        self.misbehaviour = ""  # of the other side, later
        self.why = ""  # it is closed, or about to be
        self.reading_paused = False  # since nobody takes the messages, or nobody has read the greeting yet
        self._limits = limits
        self._vet = vet  # who the other side is, or why it is not wanted
        self._made = made
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._assembler: Assembler  # once there is a proven key: a stranger gets no buffer
        self._received: deque[tuple[Lane, Received]] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._early = memoryview(b"")  # bytes that somebody else has read from the stream
        self._outbox = Outbox(limits.most_queued_bytes + 2 * MESSAGE_OVERHEAD)
        self._throttle = throttle
        self._writable = False
        self._turn_due = False
        self._said_at = 0.0  # when something was last sent
        self._farewell = b""  # the goodbye that follows the last control message
        self._liveness = Liveness(limits, self._loop.time())
        self._greeted, self._down = asyncio.Event(), asyncio.Event()
        self._abandoned = False
        self._ticker: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None

    # The interface

    def send(self, lane: Lane, message: Message) -> bool:
        """Queue a message; never blocks.

        False if the connection is closed, or if this message would exceed the bound on queued bytes: then the connection is
        closed, as the other side is too slow. An empty message, or one above the lane's limit, is our own mistake: ValueError."""
        length = sum(map(len, pieces_of(message)))
        most = self._limits.most_control_bytes if lane is Lane.CONTROL else self._limits.most_bulk_bytes
        if not 1 <= length <= most:
            raise ValueError(f"a {lane.name.lower()} message has 1 to {most} bytes, not {length}")
        if self.why:
            return False
        if not self._outbox.put(lane, message):
            self._hang_up(f"too slow: more than {self._limits.most_queued_bytes} bytes are queued for it")
            return False
        if not self._turn_due:
            self._write()
        return True

    async def receive(self) -> tuple[Lane, Received] | None:
        """The next whole message, or None once closed. Messages that arrived before the other side closed are still handed out.

        One caller at a time. If nobody calls it, the other side is stopped after `most_received_bytes`, on both lanes."""
        while not self._received:
            if self.why:
                return None
            if self._reader is not None:
                raise RuntimeError("receive() has another caller")
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        heard = self._received.popleft()
        self.waiting_bytes -= len(heard[1]) + MESSAGE_OVERHEAD
        low = self.waiting_bytes <= self._most_received // 2
        if self.reading_paused and low and not self._assembler.halted:
            self._resume_reading()
        return heard

    @property
    def up(self) -> bool:
        """Whether neither side has hung up."""
        return not self.why

    def recognise(self, *, known: bool) -> None:
        """Read on after the greeting, or take note that the other side is known now, or no more.

        A known one may send messages as long as the limits allow; they are handed out even after it closed. Anybody else's are as
        short as a greeting, all on the control lane, and end with the connection (SPEC M4)."""
        if self._transport is None or self.why or (known == self.known and not self._assembler.halted):
            return
        if known:
            widen(self._socket)
        self.known = known
        self._bound_encrypted(self._transport)
        self._read_on()

    def close(self, why: str = "") -> None:
        """Hang up. Queued control messages still leave, within a second; queued bulk does not. The other side reads `why`."""
        if self.why:
            return
        self._finish(why or "closed")
        self._drop_received()
        self._read_on()  # to see the other side hang up
        self._deadline = self._loop.call_later(CLOSE_S, self._abort)
        self._outbox.drop(Lane.BULK)
        self._farewell = goodbye(why)
        self._write()

    async def closed(self) -> str:
        """Wait until the connection is down; the reason why it went down."""
        await self._down.wait()
        return self.why

    @property
    def round_trip_s(self) -> float | None:
        """Newest measure, where the system has one."""
        return round_trip_s(self._socket)

    @property
    def queued_bytes(self) -> int:
        """Of messages that have not left yet."""
        return self._outbox.waiting_bytes

    # For the transport

    def feed(self, early: bytes) -> None:
        """Take bytes that somebody else has read from the stream; those behind the greeting wait, too."""
        self._early = memoryview(early)
        self._feed()

    async def greeted(self) -> None:
        """Wait for the first sign that the other side has taken us, or for the end."""
        await self._greeted.wait()

    def abandon(self) -> None:
        """Nobody waits for this handshake any more. If it succeeds all the same, that is the end of it."""
        self._abandoned = True
        self._abort()

    # For asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._assembler = Assembler(self._limits.most_unknown_bytes)
        self._bound_encrypted(transport)
        self._made(self)
        if self._abandoned:
            self._abort()
            return
        transport.set_write_buffer_limits(high=_BUFFERED_BYTES)
        self._said_at = self._loop.time()
        self._writable = True
        self._liveness = Liveness(self._limits, self._loop.time())
        verdict = self._vet(transport.get_extra_info("ssl_object"))
        if isinstance(verdict, str):
            # Before anything that a stranger may have sent already is looked at.
            self.refusal = verdict
            self.close(verdict)
            return
        self.peer = verdict
        self._tick()
        if not self.dialled:
            self._emit(PING)  # tells the dialler that it was taken: TLS 1.3 alone would not

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._assembler.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.bytes_in += nbytes
        self._liveness.heard(nbytes, self._loop.time())
        try:
            arrived = self._assembler.filled(nbytes)
        except MalformedError as error:
            self._misbehaved(f"sent {error}")
            return
        self._hear(arrived)

    def _hear(self, arrived: list[tuple[ChunkKind, Received]]) -> None:
        for kind, body in arrived:
            if kind is ChunkKind.PING:
                self._liveness.pinged()
            elif kind is ChunkKind.GOODBYE:
                self._finish(f"the other side closed: {reason_of(body)}")
                self._abort()
                return
            elif not self.why:  # else we have hung up, and read on only to see the other side do so
                self._received.append((Lane(kind), body))
                self.waiting_bytes += len(body) + MESSAGE_OVERHEAD
                self._wake_reader()
        if self._liveness.too_many_pings:
            self._misbehaved("sent pings without end")
            return
        self._greeted.set()
        full = self._assembler.halted or self.waiting_bytes >= self._most_received
        if full and not self.reading_paused and self._transport is not None:
            self.reading_paused = True
            self._transport.pause_reading()

    def eof_received(self) -> None:
        self._finish("the other side hung up")
        self._abort()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(f"the connection broke: {exc}" if exc else "the connection broke")
        self._transport = None
        for timer in (self._ticker, self._deadline):
            if timer is not None:
                timer.cancel()
        self._writable = False
        if self._throttle is not None:
            self._throttle.forget(self)
        self._outbox.drop(Lane.CONTROL)
        self._outbox.drop(Lane.BULK)
        self._down.set()
        self._lost(self)

    # Sending

    def next_lane(self) -> Lane | None:
        return self._outbox.next_lane() if self._writable else None

    def send_chunk(self) -> int:
        chunk = self._outbox.next_chunk()
        if chunk is None:
            return 0
        header, pieces = chunk
        while pieces and len(header) + len(pieces[0]) <= _JOINED_BYTES:
            header += pieces.pop(0)
        self._emit(header, *pieces)
        self._say_farewell()
        return len(header) + sum(map(len, pieces))

    def _next_turn(self) -> None:
        self._turn_due = False
        self._write()

    def _write(self) -> None:
        self._say_farewell()
        if self._throttle is not None:
            self._throttle.ask(self)
            return
        written = 0
        while written < _TURN_BYTES and self.next_lane() is not None:
            written += self.send_chunk()
        if self.next_lane() is not None and not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._next_turn)

    def _say_farewell(self) -> None:
        """Say goodbye, if it is due and the last control message has left."""
        if self._farewell and self._outbox.next_lane() is None and self._writable:
            farewell, self._farewell = self._farewell, b""
            self._emit(farewell)

    def _emit(self, *parts: bytes | memoryview) -> None:
        if self._transport is None:
            return
        self._said_at = self._loop.time()
        self.bytes_out += sum(map(len, parts))
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)

    # Keeping up, and ending

    def _tick(self) -> None:
        now = self._loop.time()
        self._ticker = self._loop.call_later(self._liveness.tick_every_s, self._tick)
        self._liveness.tick(now)
        if self.why:
            return
        if self._writable and now - self._said_at >= self._limits.ping_s / 2:
            self._emit(PING)  # at once: it counts against the cap, and does not wait for it
            if self._throttle is not None:
                self._throttle.spend(len(PING))
        if self.reading_paused:
            if not self.known and has_ended(self._socket):
                self.eof_received()  # a stranger's messages end with its connection
            return
        fault = self._liveness.check(now, assembling=self._assembler.assembling)
        if fault is not None and fault.misbehaved:
            self._misbehaved(fault.why)
        elif fault is not None:
            self._hang_up(fault.why)

    @property
    def _most_received(self) -> int:
        return self._limits.most_received_bytes if self.known else self._limits.most_unknown_bytes

    @property
    def _socket(self) -> object:
        return None if self._transport is None else self._transport.get_extra_info("socket")

    def _bound_encrypted(self, transport: asyncio.Transport) -> None:
        """Bound the bytes that TLS takes from the system while reading is paused."""
        if hasattr(transport, "set_read_buffer_limits"):
            transport.set_read_buffer_limits(None if self.known else _ENCRYPTED_BYTES)

    def _read_on(self) -> None:
        """Go on with the limits of the other side as it is known now; also behind its greeting."""
        limits = self._limits
        most = (limits.most_control_bytes, limits.most_bulk_bytes) if self.known else (limits.most_unknown_bytes, 0)
        try:
            arrived = self._assembler.allow(*most)
        except MalformedError as error:
            self._misbehaved(f"sent {error}")
            return
        self._hear(arrived)
        if self.reading_paused and self.waiting_bytes < self._most_received:
            self._resume_reading()

    def _resume_reading(self) -> None:
        self.reading_paused = False
        self._liveness.read_again(self._loop.time())
        self._feed()
        if self._transport is not None and not self.reading_paused:
            self._transport.resume_reading()

    def _feed(self) -> None:
        while self._early and not (self.why or self.reading_paused):
            room = self.get_buffer(-1)
            count = min(len(room), len(self._early))
            room[:count] = self._early[:count]
            self._early = self._early[count:]
            self.buffer_updated(count)

    def _misbehaved(self, what: str) -> None:
        self.misbehaviour = what
        self._hang_up(what)

    def _hang_up(self, why: str) -> None:
        """At once: nothing is owed to a peer that is gone, too slow or hostile. It may still read why, if it listens."""
        self._finish(why)
        if self._writable:
            self._emit(goodbye(why))
        self._abort()

    def _finish(self, why: str) -> None:
        if self.why:
            return
        self.why = why
        self._greeted.set()
        if not self.known:
            self._drop_received()
            self._early = memoryview(b"")
        self._wake_reader()

    def _drop_received(self) -> None:
        self._received.clear()
        self.waiting_bytes = 0

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


# The kernel's side of a TCP socket: what it measures, what it buffers, and whether the other side is still there.

_LINUX = sys.platform == "linux"
_STATE = struct.Struct("=B")  # `tcpi_state`, the first field of Linux's `struct tcp_info` …
_ROUND_TRIP = struct.Struct("=68xI")  # … and `tcpi_rtt` in it, in microseconds
_ESTABLISHED = 1
_BUF_LOCK, _NO_LOCK = 72, 0  # Linux 5.14: whether a size of a buffer was set by hand, and may not grow by itself
_NARROW_BYTES = 32 * 1024  # unread, from a peer that nobody knows; Linux doubles it for its own bookkeeping
_UNSENT_BYTES = 256 * 1024  # handed to the kernel but not on the wire: control cannot overtake what is there


def tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)


def narrow(sock: socket.socket) -> None:
    """Keep little of what a peer sends unread: else the system would hold up to 32 MiB of each stranger that floods [M4]. Only
    where `widen` can undo it."""
    if _LINUX:
        with suppress(OSError):
            sock.getsockopt(socket.SOL_SOCKET, _BUF_LOCK)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _NARROW_BYTES)


def widen(connected: Any) -> None:
    """Let the buffer of an asyncio transport's socket grow again with the delay and speed of its line."""
    if _LINUX and connected is not None:
        with suppress(OSError, AttributeError):
            connected.setsockopt(socket.SOL_SOCKET, _BUF_LOCK, _NO_LOCK)


def has_ended(connected: Any) -> bool:
    """Whether the other side of an asyncio transport's socket has hung up; nobody needs to read for that. False where the system
    does not say."""
    return _tcp_info(connected, _STATE) not in (None, _ESTABLISHED)


def round_trip_s(connected: Any) -> float | None:
    """Of the socket of an asyncio transport; None where the system does not say, and for what is no TCP socket."""
    microseconds = _tcp_info(connected, _ROUND_TRIP)
    return None if microseconds is None else microseconds / 1e6


def _tcp_info(connected: Any, field: struct.Struct) -> int | None:
    if not _LINUX or connected is None:
        return None
    with suppress(OSError, AttributeError, struct.error):  # it was closed, is a stream of another kind, or tells less
        told: int = field.unpack(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, field.size))[0]
        return told
    return None


@dataclass(frozen=True)
class Fault:
    """A reason to hang up."""

    why: str
    misbehaved: bool  # or else it is only gone


class Liveness:
    """Whether the other side is still there, and whether its message moves. The clock is passed in. While we do not read, nothing
    is held against it."""

    def __init__(self, limits: TransportLimits, now: float) -> None:
        self.tick_every_s = min(limits.ping_s, limits.idle_s / 4) / 2
        self._limits = limits
        self._made_at = self._heard_at = self._window_at = self._ticked_at = now
        self._window_bytes = 0  # since `_window_at`, without pings
        self._pings = 0

    def heard(self, count: int, now: float) -> None:
        self._heard_at = now
        self._window_bytes += count

    def pinged(self) -> None:
        """One of the frames just heard was a ping, which says that the other side lives and not that its message moves."""
        self._pings += 1
        self._window_bytes -= len(PING)

    @property
    def too_many_pings(self) -> bool:
        return self._pings > _MOST_PINGS + 20 * (self._heard_at - self._made_at) / self._limits.ping_s

    def read_again(self, now: float) -> None:
        """We have not read for a while, and do so from now on."""
        self._heard_at = self._window_at = now
        self._window_bytes = 0

    def tick(self, now: float) -> None:
        """Called every `tick_every_s`. If it comes late, we were not there to hear; the delay is not held against anybody."""
        held_up = now - self._ticked_at - self.tick_every_s
        self._ticked_at = now
        if held_up > self.tick_every_s / 2:
            self._heard_at = min(now, self._heard_at + held_up)
            self._window_at = min(now, self._window_at + held_up)

    def check(self, now: float, *, assembling: bool) -> Fault | None:
        """`assembling`: a message is under way, so bytes have to arrive, or a peer could hold memory for ever by trickling."""
        idle_s, fault = self._limits.idle_s, None
        if now - self._heard_at >= idle_s:
            return Fault(f"not heard for {idle_s:g} s", misbehaved=False)
        window_s = now - self._window_at
        if assembling and window_s < idle_s:
            return None
        if assembling and self._window_bytes < SLOWEST_BYTES_PER_SECOND * window_s:
            fault = Fault(f"let a message trickle: {self._window_bytes} bytes in {idle_s:g} s", misbehaved=True)
        self._window_at, self._window_bytes = now, 0
        return fault
