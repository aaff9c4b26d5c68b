"""One line over TLS: reads straight into messages, writes chunk by chunk, and knows when the other side is gone.

When it hangs up on the other side:

- nothing was heard for `idle_s` (a byte that TLS has not authenticated was not heard);
- a message is under way and, averaged over `idle_s`, less than SLOWEST_BYTES_PER_SECOND arrived: a message must not take
  a place for ever by trickling. Pings do not count here, other messages do;
- pings without end, anything malformed, more queued bytes than the bound.

While *we* do not read (the queue of received messages is full, or the process was held up), none of this is held
against the other side.

Nobody sends a TLS close_notify: messages have lengths, so a cut is noticed anyway, and a goodbye says why. Whoever
says goodbye waits a moment for the other side to hang up, so that what was sent before is not lost with the socket.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable

from troth.crypto.identity import PeerId
from troth.network.transport.base import SLOWEST_BYTES_PER_SECOND, Lane, Limits, Message, Received
from troth.network.transport.framing import (
    MESSAGE_OVERHEAD,
    PING,
    Assembler,
    Kind,
    MalformedError,
    Outbox,
    goodbye,
    reason_of,
)
from troth.network.transport.throttle import Throttle

CLOSE_S = 1.0  # for what is still to be said when a connection closes
_TURN_BYTES = 512 * 1024  # written before others get their turn in the event loop
_BUFFERED_BYTES = 256 * 1024  # encrypted ahead of the socket; a control message waits behind at most that
_JOINED_BYTES = 8 * 1024  # up to here, header and body travel in one TLS record
_MOST_PINGS = 64  # at once; and over the life of the line, twenty times as many as we would send
_NOBODY = PeerId(bytes(32))

Vetting = Callable[[ssl.SSLObject], PeerId | str]


class StreamConnection(asyncio.BufferedProtocol):
    """A Connection, and the protocol that asyncio drives. Made by a Hall."""

    def __init__(
        self,
        limits: Limits,
        throttle: Throttle | None,
        *,
        dialled: bool,
        vet: Vetting,
        made: Callable[["StreamConnection"], None],
        lost: Callable[["StreamConnection"], None],
    ) -> None:
        self.peer = _NOBODY  # until the handshake is done
        self.dialled = dialled
        self.bytes_in = 0
        self.bytes_out = 0
        self.refusal = ""  # why the other side was turned away after the handshake
        self.misbehaviour = ""  # what it did wrong later
        self._limits = limits
        self._throttle = throttle
        self._vet = vet  # who the other side is, or why it is not wanted
        self._made = made
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._assembler: Assembler  # once there is a proven key: whoever only knocks gets no buffer
        self._outbox = Outbox(limits.most_queued_bytes + 2 * MESSAGE_OVERHEAD)
        self._received: deque[tuple[Lane, Received]] = deque()
        self._received_bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._down: asyncio.Future[str] = self._loop.create_future()
        self._why = ""
        self._abandoned = False
        self._farewell = b""  # the goodbye that follows the last control message
        self._writable = False
        self._turn_due = False
        self._reading_paused = False
        self._tick_every_s = min(limits.ping_s, limits.idle_s / 4) / 2
        self._ticker: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._made_at = self._heard_at = self._said_at = self._window_at = self._ticked_at = self._loop.time()
        self._window_bytes = 0
        self._pings = 0

    # What users call

    def send(self, lane: Lane, message: Message) -> bool:
        length = memoryview(message).nbytes
        most = self._limits.most_control_bytes if lane is Lane.CONTROL else self._limits.most_bulk_bytes
        if not 1 <= length <= most:
            raise ValueError(f"a {lane.name.lower()} message has 1 to {most} bytes, not {length}")
        if self._why:
            return False
        if not self._outbox.put(lane, message):
            self._hang_up(f"too slow: more than {self._limits.most_queued_bytes} bytes are queued for it")
            return False
        if not self._turn_due:
            self._write()
        return True

    async def receive(self) -> tuple[Lane, Received] | None:
        while not self._received:
            if self._why:
                return None
            if self._reader is not None:
                raise RuntimeError("receive() has another caller")
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        lane, message = self._received.popleft()
        self._received_bytes -= len(message) + MESSAGE_OVERHEAD
        if self._reading_paused and self._received_bytes <= self._limits.most_received_bytes // 2:
            self._resume_reading()
        return lane, message

    def close(self, why: str = "") -> None:
        if self._why:
            return
        self._finish(why or "closed")
        self._received.clear()
        self._received_bytes = 0
        self._outbox.drop(Lane.BULK)
        self._farewell = goodbye(why)
        self._resume_reading()  # to see the other side hang up
        self._deadline = self._loop.call_later(CLOSE_S, self._abort)
        self._write()

    async def closed(self) -> str:
        return await asyncio.shield(self._down)

    # What the transport calls

    async def greeted(self) -> None:
        """Wait for the first sign that the other side has admitted us, or for the end."""
        await asyncio.shield(self._greeted)

    def abandon(self) -> None:
        """Nobody waits for this handshake any more. If it succeeds all the same, that is the end of it."""
        self._abandoned = True
        self._abort()

    @property
    def why(self) -> str:
        return self._why

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._assembler = Assembler(self._limits.most_control_bytes, self._limits.most_bulk_bytes)
        self._made(self)
        if self._abandoned:
            self._abort()
            return
        transport.set_write_buffer_limits(high=_BUFFERED_BYTES)
        self._writable = True
        self._made_at = self._heard_at = self._said_at = self._window_at = self._ticked_at = self._loop.time()
        verdict = self._vet(transport.get_extra_info("ssl_object"))
        if isinstance(verdict, str):
            # Before anything of what it may have sent already is looked at.
            self.refusal = verdict
            self.close(verdict)
            return
        self.peer = verdict
        self._tick()
        if not self.dialled:
            self._emit(PING)  # tells the dialler that it was admitted: TLS 1.3 alone would not

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._assembler.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.bytes_in += nbytes
        self._heard_at = self._loop.time()
        self._window_bytes += nbytes
        try:
            arrived = self._assembler.filled(nbytes)
        except MalformedError as error:
            self._misbehaved(f"sent {error}")
            return
        for kind, body in arrived:
            if kind is Kind.PING:
                self._pings += 1
                self._window_bytes -= len(PING)
            elif kind is Kind.GOODBYE:
                self._finish(f"the other side closed: {reason_of(body)}")
                self._abort()
                return
            elif not self._why:  # else we have hung up, and read on only to see the other side do so
                self._received.append((Lane(kind), body))
                self._received_bytes += len(body) + MESSAGE_OVERHEAD
        if self._pings > _MOST_PINGS + 20 * (self._heard_at - self._made_at) / self._limits.ping_s:
            self._misbehaved("sent pings without end")
            return
        if not self._greeted.done():
            self._greeted.set_result(None)
        if self._received:
            self._wake_reader()
            if self._received_bytes >= self._limits.most_received_bytes and self._transport is not None:
                self._reading_paused = True
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
        self._writable = False
        self._transport = None
        for timer in (self._ticker, self._deadline):
            if timer is not None:
                timer.cancel()
        if self._throttle is not None:
            self._throttle.forget(self)
        self._outbox.drop(Lane.CONTROL)
        self._outbox.drop(Lane.BULK)
        if not self._down.done():
            self._down.set_result(self._why)
        self._lost(self)

    # Writing

    def next_lane(self) -> Lane | None:
        return self._outbox.next_lane() if self._writable else None

    def send_chunk(self) -> int:
        chunk = self._outbox.next_chunk()
        if chunk is None:
            return 0
        header, body = chunk
        if len(body) <= _JOINED_BYTES:
            self._emit(header + body)
        else:
            self._emit(header, body)
        if self._farewell:
            self._say_goodbye()
        return len(header) + len(body)

    def _next_turn(self) -> None:
        self._turn_due = False
        self._write()

    def _write(self) -> None:
        if self._farewell:
            self._say_goodbye()
        if self._throttle is not None:
            self._throttle.ask(self)
            return
        written = 0
        while written < _TURN_BYTES and self.next_lane() is not None:
            written += self.send_chunk()
        if self.next_lane() is not None and not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._next_turn)

    def _say_goodbye(self) -> None:
        """After the last control message."""
        if self._outbox.next_lane() is None and self._writable:
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
        limits, now = self._limits, self._loop.time()
        self._ticker = self._loop.call_later(self._tick_every_s, self._tick)
        held_up = now - self._ticked_at - self._tick_every_s
        self._ticked_at = now
        if self._why:
            return
        if held_up > self._tick_every_s / 2:  # we were not there to hear; what was said meanwhile is read after this
            self._heard_at = min(now, self._heard_at + held_up)
            self._window_at = min(now, self._window_at + held_up)
        if self._writable and now - self._said_at >= limits.ping_s / 2:
            self._emit(PING)
            if self._throttle is not None:
                self._throttle.spend(len(PING))
        if self._reading_paused:
            return
        if now - self._heard_at >= limits.idle_s:
            self._hang_up(f"not heard for {limits.idle_s:g} s")
        elif not self._assembler.assembling:
            self._window_at, self._window_bytes = now, 0
        elif now - self._window_at >= limits.idle_s:
            if self._window_bytes < SLOWEST_BYTES_PER_SECOND * (now - self._window_at):
                self._misbehaved(f"let a message trickle: {self._window_bytes} bytes in {limits.idle_s:g} s")
            self._window_at, self._window_bytes = now, 0

    def _resume_reading(self) -> None:
        self._reading_paused = False
        self._heard_at = self._window_at = self._loop.time()
        self._window_bytes = 0
        if self._transport is not None:
            self._transport.resume_reading()

    def _misbehaved(self, what: str) -> None:
        self.misbehaviour = what
        self._hang_up(what)

    def _hang_up(self, why: str) -> None:
        """At once: nothing is owed to a peer that is gone, too slow or hostile. It may still read why, if it listens."""
        self._finish(why)
        if self._writable and self._transport is not None:
            self._emit(goodbye(why))
        self._abort()

    def _finish(self, why: str) -> None:
        if self._why:
            return
        self._why = why
        if not self._greeted.done():
            self._greeted.set_result(None)
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
