"""A viewer's stream of server-sent events: history first, then what comes.

Every message has the viewer's place in the stream as its id. A viewer that was dropped comes back with it and loses nothing, so
slow ones can be dropped.
"""

import select
import socket
import time
from http import HTTPStatus

import msgspec

from troth.events.kinds import Event, Status, Stepped
from troth.watch.http import Response
from troth.watch.live import LiveRun
from troth.watch.tail import Position

MOST_EVENTS = 500  # of a message
_LEAST_GAP_S = 0.1  # between two messages about a run under way
_STATUS_GAP_S = 1.0
_KEEP_ALIVE_S = 10.0
_LOOK_S = 0.5  # whether the viewer is still there
FOR_GOOD = ("over", "out")  # the others may come back

HEAD = Response(HTTPStatus.OK, kind="text/event-stream; charset=utf-8", headers={"X-Accel-Buffering": "no"})


class _Batch(msgspec.Struct, frozen=True):
    """The data of a message."""

    events: list[Event]
    total: int  # events that there are by now
    first: int = msgspec.field(name="from")  # number of the first of these, from 0


class _End(msgspec.Struct, frozen=True):
    how: str


def light(event: Event) -> Event:
    """Without what only one step's view needs, and a viewer asks for by itself (`/step`)."""
    return msgspec.structs.replace(event, owners=(), phases=()) if isinstance(event, Stepped) else event


def message(data: object, *, event: str = "", place: Position | None = None) -> bytes:
    head = (f"event: {event}\n" if event else "") + (f"id: {place}\n" if place is not None else "")
    return head.encode() + b"data: " + msgspec.json.encode(data) + b"\n\n"  # JSON has no line breaks in it


class Stream:
    """One viewer. `serve` returns when it is gone, too slow, or has seen all there will ever be."""

    def __init__(self, connection: socket.socket, run: LiveRun, begin: Position | None, write_s: float) -> None:
        self._connection = connection
        self._run = run
        self._at = begin or Position(0)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN | select.POLLHUP | select.POLLERR)
        self._status: Status | None = None
        self._status_at = float("-inf")
        self._sent_at = 0.0
        self._ended: str | None = None
        connection.settimeout(write_s)

    def serve(self) -> None:
        """Raises `OSError` if the viewer is gone, or does not read."""
        self._send(b"retry: 2000\n\n")
        while not self._run.over and not self._poll.poll(0):  # a viewer has nothing to say: it has left
            seen = self._run.changes
            self._send_events()
            self._send_status()
            self._send_end()
            if self._ended in FOR_GOOD:
                return
            if time.monotonic() >= self._sent_at + _KEEP_ALIVE_S:
                self._send(b": still here\n\n")
            self._run.wait(seen, _LOOK_S)

    def _send_events(self) -> None:
        while True:
            there = self._run.tail.position
            if there.stream != self._at.stream or there.count < self._at.count:
                if self._at.count:
                    self._ended = None
                    self._send(message({}, event="reset"))  # another run: what was shown is not part of it
                self._at = Position(0, there.stream)
            begin = self._at.count
            events, self._at = self._run.tail.events(self._at, MOST_EVENTS)
            if self._at.count == begin:
                return
            self._ended = None
            self._send(message(_Batch([light(one) for one in events], there.count, begin), place=self._at))
            if self._at.count >= there.count:
                self._run.rest(_LEAST_GAP_S)
                return

    def _send_status(self) -> None:
        status = self._run.status
        if status is not None and status != self._status and time.monotonic() >= self._status_at + _STATUS_GAP_S:
            self._status, self._status_at = status, time.monotonic()
            self._send(message(status, event="status"))

    def _send_end(self) -> None:
        how = self._run.how_it_ended
        if how is None and self._ended is not None:  # it was only silent
            self._ended = None
            self._send(message({}, event="again"))
        if how is not None and how != self._ended and self._at == self._run.tail.position:
            self._ended = how
            self._send(message(_End(how), event="end"))

    def _send(self, raw: bytes) -> None:
        self._connection.sendall(raw)
        self._sent_at = time.monotonic()
