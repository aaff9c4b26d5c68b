"""A run that is followed: one thread looks at its files, and all viewers wait for what it finds."""

import os
import threading
import time
from collections.abc import Iterator
from typing import Self

import msgspec

from troth.events.kinds import Event, Status, Stepped
from troth.watch.folder import RunFolder
from troth.watch.tail import EventTail, Position, Reader

FOR_GOOD = ("over", "out")  # ends of a run's stream; after the others it may go on
_LOOK_S = 0.1  # between two looks at the events
_STATUS_S = 0.5
_IDLE_S = 1.0  # while nobody watches
FRESH_S = 10.0  # after which a status of a process that is gone says nothing about now
SILENT_S = 60.0  # the same, whatever became of its process: it may hang, or its number be another's by now
_LONG_S = 600.0  # that a first step may take
_STEPS = 20  # where nobody keeps a status: so many times the last step's length without another one is silence


class LiveRun:
    """Events and status of a folder. Use as a context manager; `wait` returns when there may be something new."""

    def __init__(self, folder: RunFolder, *, ignored: str = "") -> None:
        """`ignored`: an earlier run's stream, which is not to be shown (`stream_of`)."""
        self.folder = folder
        self.tail = EventTail(folder.events, ignored=ignored)
        self.status: Status | None = None
        self._changed = threading.Condition()
        self._changes = 0
        self._viewers = 0
        self._over = False
        self._thread = threading.Thread(target=self._follow, name="look at the files", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._thread.join()
        self.tail.close()

    @property
    def over(self) -> bool:
        """Whether nobody looks any more."""
        return self._over

    @property
    def changes(self) -> int:
        return self._changes

    def wait(self, seen: int, seconds: float) -> None:
        """Wait until there is more than `changes` said, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._changes != seen, seconds)

    def rest(self, seconds: float) -> None:
        """Wait for so long, or until it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._over, seconds)

    def viewer(self, more: int) -> None:
        """One viewer more, or one less: without any there is no hurry."""
        with self._changed:
            self._viewers += more
            self._changed.notify_all()

    @property
    def how_it_ended(self) -> str | None:
        """Why there is nothing more to come, as far as one can tell from files: an `Ended.how`, or "lost" if the process that
        wrote is gone without a word, or hangs. A member that stopped, or is lost, may still come back."""
        if (ended := self.tail.ended) is not None:
            return ended.how
        status = self.status
        if status is None:
            return "lost" if self._is_silent() else None
        return "lost" if status.pid and is_lost(status, time.time()) else None

    def _is_silent(self) -> bool:
        """Of a run without a status, as simulations are: whether its events should have gone on by now."""
        written, seconds = self.tail.written_at, self.tail.seconds
        if written is None:
            return False
        longest = _LONG_S if seconds is None else max(SILENT_S, _STEPS * seconds)
        return abs(time.time() - written) > longest  # ahead: see `is_lost`

    def _follow(self) -> None:
        next_status = 0.0
        while not self._over:
            changed = self.tail.refresh(lambda: self._over)
            if time.monotonic() >= next_status:
                next_status = time.monotonic() + _STATUS_S
                status = self.folder.status(self.tail.began)
                changed |= status != self.status
                self.status = status
            with self._changed:
                if changed:
                    self._changes += 1
                    self._changed.notify_all()
                if not self._over:
                    self._changed.wait(_LOOK_S if self._viewers else _IDLE_S)  # woken early by a new viewer


def is_lost(status: Status, now: float) -> bool:
    """Whether a status should have been renewed, and was not. One of a time to come is: it was written before the clock was set
    right, and whoever lives writes every second."""
    age = now - status.at
    return age > SILENT_S or is_ahead(age) or (age > FRESH_S and status.pid > 0 and not is_alive(status.pid))


def is_ahead(age_s: float) -> bool:
    """Whether something is of a time to come, by more than clocks differ: nobody knows how old it is."""
    return age_s < -FRESH_S


def is_alive(pid: int) -> bool:
    """Whether there is a process of that number; it may be another one by now."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


# A viewer's stream of server-sent events: history first, then what comes.
#
# Every message has the viewer's place in the stream as its id. A viewer that was dropped comes back with it and loses
# nothing, so slow ones can be dropped.


_LEAST_GAP_S = 0.1  # between two messages about a run under way
_STATUS_GAP_S = 1.0
_KEEP_ALIVE_S = 10.0
_VIEWER_LOOK_S = 0.5  # a viewer that has left is noticed after this time at the latest


class _Batch(msgspec.Struct, frozen=True):
    """The data of a message."""

    events: list[Event]
    total: int  # events that there are by now
    first: int = msgspec.field(name="from")  # number of the first of these, from 0


class ViewerStream:
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
            self._run.wait(seen, _VIEWER_LOOK_S)

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
