"""A viewer's stream of server-sent events: history first, then what comes.

Every message has the viewer's place in the stream as its id. A viewer that was dropped comes back with it and loses nothing, so
slow ones can be dropped.
"""

import time
from collections.abc import Iterator

import msgspec

from troth.events.kinds import Event, Status, Stepped
from troth.watch.live import FOR_GOOD, LiveRun
from troth.watch.tail import Position, Reader

_LEAST_GAP_S = 0.1  # between two messages about a run under way
_STATUS_GAP_S = 1.0
_KEEP_ALIVE_S = 10.0
_LOOK_S = 0.5  # a viewer that has left is noticed after this time at the latest


class _Batch(msgspec.Struct, frozen=True):
    """The data of a message."""

    events: list[Event]
    total: int  # events that there are by now
    first: int = msgspec.field(name="from")  # number of the first of these, from 0


class Stream:
    """The messages for one viewer, until it has seen all there will ever be."""

    def __init__(self, run: LiveRun, begin: Position | None) -> None:
        self._run = run
        self._reader = Reader(run.tail, begin)
        self._status: Status | None = None
        self._status_at = float("-inf")
        self._ended: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        yield b"retry: 2000\n\n"
        sent_at = time.monotonic()
        while not self._run.over:
            seen = self._run.changes
            messages, behind = [*self._events()], self._reader.behind
            if not behind:
                messages += [*self._present(), *self._end()]
            for message in messages:
                sent_at = time.monotonic()
                yield message
            if self._ended in FOR_GOOD:
                return
            if behind:
                continue
            if time.monotonic() >= sent_at + _KEEP_ALIVE_S:
                sent_at = time.monotonic()
                yield b": still here\n\n"
            yield b""  # says nothing, and lets a viewer go that has left
            self._run.rest(_LEAST_GAP_S)
            self._run.wait(seen, _LOOK_S)

    def _events(self) -> Iterator[bytes]:
        before = self._reader.at.count
        events, other = self._reader.new()
        first, now = 0 if other else before, self._reader.at
        if other and before:
            yield _message({}, event="reset")  # another run: what was shown is not part of it
        if other or now.count > first:
            self._ended = None
        if now.count > first:
            total = self._run.tail.position.count
            yield _message(_Batch([_light(one) for one in events], total, first), place=now)

    def _present(self) -> Iterator[bytes]:
        status = self._run.status
        if status is not None and status != self._status and time.monotonic() >= self._status_at + _STATUS_GAP_S:
            self._status, self._status_at = status, time.monotonic()
            yield _message(status, event="status")

    def _end(self) -> Iterator[bytes]:
        how = self._run.how_it_ended
        if how is None and self._ended is not None:  # it was only silent
            self._ended = None
            yield _message({}, event="again")
        if how is not None and how != self._ended and not self._reader.behind:
            self._ended = how
            yield _message({"how": how}, event="end")


def _light(event: Event) -> Event:
    """Without what only one step's view needs, and a viewer asks for by itself (`/step`)."""
    return msgspec.structs.replace(event, owners=(), phases=()) if isinstance(event, Stepped) else event


def _message(data: object, *, event: str = "", place: Position | None = None) -> bytes:
    head = (f"event: {event}\n" if event else "") + (f"id: {place}\n" if place is not None else "")
    return head.encode() + b"data: " + msgspec.json.encode(data) + b"\n\n"  # JSON has no line breaks in it
