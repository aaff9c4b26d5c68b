"""The sending half of a connection: queued messages leave chunk by chunk, control first, and a goodbye last."""

import asyncio

from troth.network.transport.base import Lane, Message
from troth.network.transport.framing import MESSAGE_OVERHEAD, PING, Outbox, goodbye
from troth.network.transport.throttle import Throttle

_TURN_BYTES = 512 * 1024  # written before others get their turn in the event loop
_BUFFERED_BYTES = 256 * 1024  # encrypted ahead of the socket; a control message waits behind at most that
_JOINED_BYTES = 8 * 1024  # up to here, a header and what follows it travel in one TLS record


class ChunkWriter:
    """A Sender, in the words of the throttle."""

    def __init__(self, most_queued_bytes: int, throttle: Throttle | None) -> None:
        self.bytes_out = 0
        self.said_at = 0.0  # when something was last sent
        self.writable = False
        self._outbox = Outbox(most_queued_bytes + 2 * MESSAGE_OVERHEAD)
        self._throttle = throttle
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._turn_due = False
        self._farewell = b""  # the goodbye that follows the last control message

    def start(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=_BUFFERED_BYTES)
        self._transport = transport
        self.said_at = self._loop.time()
        self.writable = True

    def stop(self) -> None:
        """The connection is lost: forget everything that waits."""
        self.writable = False
        self._transport = None
        if self._throttle is not None:
            self._throttle.forget(self)
        self._outbox.drop(Lane.CONTROL)
        self._outbox.drop(Lane.BULK)

    @property
    def queued_bytes(self) -> int:
        return self._outbox.waiting_bytes

    def send(self, lane: Lane, message: Message) -> bool:
        """Queue a message. False, and nothing is queued, if that would exceed the bound."""
        if not self._outbox.put(lane, message):
            return False
        if not self._turn_due:
            self._write()
        return True

    def ping(self) -> None:
        """Say at once that we are alive. It counts against the cap, and does not wait for it."""
        self._emit(PING)
        if self._throttle is not None:
            self._throttle.spend(len(PING))

    def greet(self) -> None:
        """Tell the dialler that it was admitted: TLS 1.3 alone would not."""
        self._emit(PING)

    def finish(self, why: str) -> None:
        """Drop queued bulk, send queued control, and say goodbye after it."""
        self._outbox.drop(Lane.BULK)
        self._farewell = goodbye(why)
        self._write()

    def say_goodbye_now(self, why: str) -> None:
        if self.writable:
            self._emit(goodbye(why))

    def pause(self) -> None:
        self.writable = False

    def resume(self) -> None:
        self.writable = True
        self._write()

    # For the throttle

    def next_lane(self) -> Lane | None:
        return self._outbox.next_lane() if self.writable else None

    def send_chunk(self) -> int:
        chunk = self._outbox.next_chunk()
        if chunk is None:
            return 0
        header, pieces = chunk
        while pieces and len(header) + len(pieces[0]) <= _JOINED_BYTES:
            header += pieces.pop(0)
        self._emit(header, *pieces)
        if self._farewell:
            self._say_farewell()
        return len(header) + sum(map(len, pieces))

    def _next_turn(self) -> None:
        self._turn_due = False
        self._write()

    def _write(self) -> None:
        if self._farewell:
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
        """Say goodbye, if the last control message has left."""
        if self._outbox.next_lane() is None and self.writable:
            farewell, self._farewell = self._farewell, b""
            self._emit(farewell)

    def _emit(self, *parts: bytes | memoryview) -> None:
        if self._transport is None:
            return
        self.said_at = self._loop.time()
        self.bytes_out += sum(map(len, parts))
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)
