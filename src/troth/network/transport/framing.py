"""Two lanes of messages on one stream of bytes, and a cap on all streams together. No sockets here: bytes in, messages out, and
the other way round.

A message travels in chunks, each behind a header of nine bytes:

    kind (1 byte)   total length of the message (4 bytes)   length of this chunk (4 bytes)      big endian

The kind is a lane, or a ping ("I am alive": both lengths 0), or a goodbye (a short reason, in one chunk; nothing
follows). Chunks of different lanes may alternate, those of one lane may not: at most one message per lane is under
assembly. Every length is checked against its limit before memory is taken, and beyond the first megabyte memory is at most
eight times what has arrived: announcing much and sending little costs the announcer. After the first message, the greeting,
nothing is looked at until its sender is known, or known to be a stranger: their limits differ.
"""

import asyncio
import struct
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np

from troth.errors import printable
from troth.network.transport.base import Lane, Message, Received, pieces_of

HEADER = struct.Struct("!BII")
CHUNK_BYTES = 256 * 1024  # that we send: a control message waits behind one chunk of bulk at most
LARGEST_CHUNK_BYTES = 256 * 1024
SMALLEST_CHUNK_BYTES = 16 * 1024  # unless it ends its message: else a peer could make us parse a header for every byte
MOST_REASON_BYTES = 200
MESSAGE_OVERHEAD = 128  # rough cost of a queued message beside its bytes: else a million empty ones would be free

_FIRST_BYTES = 2**20  # taken at once when a message is announced, or less if it is shorter
_GROWTH = 8  # a message is copied when it grows: with a factor of 2 as many bytes as it has, or more
_BOUNDARY = 64  # bytes; more than any number needs
_SCRATCH_BYTES = 64 * 1024  # headers and short messages are read here, and copied
_FIRST_SCRATCH_BYTES = 8 * 1024  # of a peer that is not known
_BURST_S = 0.1  # of a cap on outgoing bytes
_DIRECT_BYTES = 16 * 1024  # when at least this much of a chunk is missing, it is read in place


class MalformedError(Exception):
    """The other side broke the framing: hang up. The text says how."""


class ChunkKind(IntEnum):
    """The first byte of a chunk."""

    CONTROL = Lane.CONTROL
    BULK = Lane.BULK
    PING = 2
    GOODBYE = 3


_KINDS = tuple(ChunkKind)  # by their number; several times faster than Kind(number)
PING = HEADER.pack(ChunkKind.PING, 0, 0)


def goodbye(why: str) -> bytes:
    reason = (why or "closed").encode("ascii", "replace")[:MOST_REASON_BYTES]
    return HEADER.pack(ChunkKind.GOODBYE, len(reason), len(reason)) + reason


def reason_of(goodbye: Received) -> str:
    """The other side's reason, made safe to print: a stranger wrote it."""
    return printable(bytes(goodbye).decode("ascii", "replace"))


@dataclass
class _Queued:
    """A message that has been sent in part, or not at all."""

    pieces: deque[memoryview]  # that are left; the first may have begun
    total: int
    left: int

    def take(self, most: int) -> list[memoryview]:
        """The next bytes, at most so many, where they lie."""
        taken = []
        while self.pieces and most:
            piece = self.pieces.popleft()
            if len(piece) > most:
                self.pieces.appendleft(piece[most:])
            taken.append(piece[:most])
            most -= len(taken[-1])
        self.left -= sum(map(len, taken))
        return taken


class Outbox:
    """Messages that wait to be sent, cut into chunks. The control lane goes first, always."""

    def __init__(self, most_bytes: int) -> None:
        self.waiting_bytes = 0
        self._most_bytes = most_bytes
        self._lanes: dict[Lane, deque[_Queued]] = {Lane.CONTROL: deque(), Lane.BULK: deque()}

    def put(self, lane: Lane, message: Message) -> bool:
        """False, and nothing is queued, if that would exceed the bound."""
        pieces = pieces_of(message)
        total = sum(map(len, pieces))
        if self.waiting_bytes + total + MESSAGE_OVERHEAD > self._most_bytes:
            return False
        self.waiting_bytes += total + MESSAGE_OVERHEAD
        self._lanes[lane].append(_Queued(deque(pieces), total, total))
        return True

    def next_lane(self) -> Lane | None:
        if self._lanes[Lane.CONTROL]:
            return Lane.CONTROL
        return Lane.BULK if self._lanes[Lane.BULK] else None

    def next_chunk(self) -> tuple[bytes, list[memoryview]] | None:
        """The header and the bytes of the chunk that goes next, in pieces; None if nothing waits."""
        lane = self.next_lane()
        if lane is None:
            return None
        message = self._lanes[lane][0]
        before, chunk = message.left, message.take(CHUNK_BYTES)
        length = before - message.left
        self.waiting_bytes -= length
        if not message.left:
            self._lanes[lane].popleft()
            self.waiting_bytes -= MESSAGE_OVERHEAD
        return HEADER.pack(lane, message.total, length), chunk

    def drop(self, lane: Lane) -> None:
        """Forget the messages of a lane; one that was sent in part stays unfinished."""
        self.waiting_bytes -= sum(message.left + MESSAGE_OVERHEAD for message in self._lanes[lane])
        self._lanes[lane].clear()


@dataclass
class _Assembly:
    """A message that has arrived in part."""

    total: int
    data: memoryview
    received: int = 0

    def make_room(self) -> None:
        """Make space behind the received bytes: for at least one more, and never above the total."""
        if self.received < len(self.data) or self.received == self.total:
            return
        grown = _space(min(self.total, _GROWTH * self.received), self.total)
        grown[: self.received] = self.data
        self.data = grown


def _space(count: int, total: int) -> memoryview:
    """Memory that is not zeroed, for the first bytes of a message that *ends* on a boundary: where a blob of numbers is the last
    thing in it, the numbers are aligned, and nobody has to copy them.

    numpy asks for large pages as well: a bytearray would take up to ten times as long to grow."""
    memory = np.empty(count + _BOUNDARY, np.uint8)
    place: int = memory.__array_interface__["data"][0]
    start = -(place + total) % _BOUNDARY
    return memory[start : start + count].data


class Assembler:
    """Turns bytes into messages. Read into `buffer()`, then say how much with `filled()`."""

    def __init__(self, most_greeting_bytes: int) -> None:
        self._most = {
            ChunkKind.CONTROL: most_greeting_bytes,
            ChunkKind.BULK: 0,
            ChunkKind.PING: 0,
            ChunkKind.GOODBYE: MOST_REASON_BYTES,
        }
        self.halted = False  # after the greeting, until `allow`
        self._greeted = False
        self._under_way: dict[ChunkKind, _Assembly] = {}
        self._scratch = memoryview(bytearray(_FIRST_SCRATCH_BYTES))
        self._held = 0  # bytes of an unfinished header, at the start of the scratch
        self._kind = ChunkKind.PING  # of the chunk that is being read
        self._missing = 0  # of that chunk
        self._direct = False  # the last buffer() was part of a message

    @property
    def assembling(self) -> bool:
        """Whether a message has begun and not ended."""
        return bool(self._under_way)

    def allow(self, most_control_bytes: int, most_bulk_bytes: int) -> list[tuple[ChunkKind, Received]]:
        """Go on with these limits: messages that are complete already. One that is under way keeps those that it began with.
        Raises MalformedError."""
        self._most |= {ChunkKind.CONTROL: most_control_bytes, ChunkKind.BULK: most_bulk_bytes}
        if most_bulk_bytes and len(self._scratch) < _SCRATCH_BYTES:
            scratch = memoryview(bytearray(_SCRATCH_BYTES))
            scratch[: self._held] = self._scratch[: self._held]
            self._scratch = scratch
        halted, self.halted, self._greeted = self.halted, False, True
        if not halted:
            return []
        self._direct = False
        return self.filled(0)

    def buffer(self) -> memoryview:
        """Memory for the next bytes, never empty: in the message itself if much of a chunk is missing."""
        self._direct = self._missing >= _DIRECT_BYTES
        if not self._direct:
            return self._scratch[self._held :]
        message = self._under_way[self._kind]
        message.make_room()
        return message.data[message.received : message.received + self._missing]

    def filled(self, count: int) -> list[tuple[ChunkKind, Received]]:
        """The messages that are complete after that many bytes were read into the buffer. Raises MalformedError."""
        done: list[tuple[ChunkKind, Received]] = []
        if self._direct:
            self._under_way[self._kind].received += count
            self._missing -= count
            self._finish_chunk(done)
            return done
        at, end = 0, self._held + count
        while not self.halted:
            if self._missing:
                at += self._copy(self._scratch[at : min(end, at + self._missing)])
                self._finish_chunk(done)
            if self._missing or self.halted or end - at < HEADER.size:
                break
            self._begin_chunk(done, *HEADER.unpack_from(self._scratch, at))
            at += HEADER.size
        self._held = end - at
        if self._held and at:
            self._scratch[: self._held] = bytes(self._scratch[at:end])
        return done

    def _begin_chunk(self, done: list[tuple[ChunkKind, Received]], kind_byte: int, total: int, length: int) -> None:
        if kind_byte >= len(_KINDS):
            raise MalformedError(f"a message of the unknown kind {kind_byte}")
        kind = _KINDS[kind_byte]
        if kind is ChunkKind.PING:
            if total or length:
                raise MalformedError("a ping with a body")
            done.append((kind, b""))
            return
        message = self._under_way.get(kind)
        received = message.received if message else 0
        if message is None and total > self._most[kind]:
            raise MalformedError(f"a {kind.name.lower()} message of {total} bytes; {self._most[kind]} are allowed")
        if message and total != message.total:
            raise MalformedError("a message begins before the one before it on its lane has ended")
        if not 1 <= length <= min(LARGEST_CHUNK_BYTES, total - received):
            raise MalformedError(f"a chunk of {length} bytes, {received} bytes into a message of {total}")
        if length < SMALLEST_CHUNK_BYTES and received + length < total:
            raise MalformedError(f"a chunk of only {length} bytes in the middle of a message")
        if message is None:
            self._under_way[kind] = _Assembly(total, _space(min(total, _FIRST_BYTES), total))
        self._kind, self._missing = kind, length

    def _copy(self, part: memoryview) -> int:
        message, taken = self._under_way[self._kind], 0
        while taken < len(part):
            message.make_room()
            room = min(len(message.data) - message.received, len(part) - taken)
            message.data[message.received : message.received + room] = part[taken : taken + room]
            message.received += room
            taken += room
        self._missing -= taken
        return taken

    def _finish_chunk(self, done: list[tuple[ChunkKind, Received]]) -> None:
        message = self._under_way[self._kind]
        if message.received == message.total:
            del self._under_way[self._kind]
            self.halted = not self._greeted and self._kind <= ChunkKind.BULK
            done.append((self._kind, message.data if self._kind is ChunkKind.BULK else bytes(message.data)))


class TokenBucket:
    """A cap on outgoing bytes. A sender that finds any tokens may send a whole chunk; the debt is paid before the next one."""

    def __init__(self, bytes_per_second: float, now: float) -> None:
        self._rate = bytes_per_second
        self._depth = max(bytes_per_second * _BURST_S, CHUNK_BYTES)
        self._tokens = self._depth
        self._at = now

    def ready_in(self, now: float) -> float:
        """Seconds until something may be sent; 0: now."""
        self._tokens = min(self._depth, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return 0.0 if self._tokens > 0 else 1e-4 - self._tokens / self._rate

    def spend(self, count: int) -> None:
        self._tokens -= count


class Sender(Protocol):
    """The sending half of a connection."""

    def next_lane(self) -> Lane | None:
        """The lane that it would send on now; None if it has nothing to send, or its socket is full."""

    def send_chunk(self) -> int:
        """Send one chunk; the number of its bytes."""


class Throttle:
    """Connections take turns, one chunk each; those with control messages come before all others."""

    def __init__(self, bytes_per_second: float, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._bucket = TokenBucket(bytes_per_second, loop.time())
        self._waiting: dict[Lane, dict[Sender, None]] = {Lane.CONTROL: {}, Lane.BULK: {}}  # in order of arrival
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, sender: Sender) -> None:
        """Let a sender send: now if there are tokens, else when its turn comes."""
        self._enqueue(sender)
        if self._timer is None:
            self._serve()

    def spend(self, count: int) -> None:
        """Count bytes that left without asking (a ping)."""
        self._bucket.spend(count)

    def forget(self, sender: Sender) -> None:
        for senders in self._waiting.values():
            senders.pop(sender, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _enqueue(self, sender: Sender) -> None:
        lane = sender.next_lane()
        if lane is not None:
            self._waiting[lane].setdefault(sender)

    def _serve(self) -> None:
        self._timer = None
        while turns := self._waiting[Lane.CONTROL] or self._waiting[Lane.BULK]:
            wait = self._bucket.ready_in(self._loop.time())
            if wait > 0:
                self._timer = self._loop.call_later(wait, self._serve)
                return
            sender = next(iter(turns))
            del turns[sender]
            if sender.next_lane() is not None:
                self._bucket.spend(sender.send_chunk())
                self._enqueue(sender)
