"""A run that is followed: its files are looked at when a viewer asks, and not more often than one viewer would."""

import threading
import time
from collections.abc import Iterator
from typing import Self

import msgspec

from troth.events.kinds import Event, Status, Stepped
from troth.watch.folder import RunFolder
from troth.watch.health import SILENT_S, is_lost
from troth.watch.tail import EventTail, Position, Reader

FOR_GOOD = ("over", "out")  # ends of a run's stream; after the others it may go on
LOOK_S = 0.2  # between two looks at the events, and between two messages to a viewer
_STATUS_S = 1.0  # between two looks at the status: it is renewed as often
_LONGEST_LOOK_S = 0.2  # at a file that is large: then viewers are told what was found so far
_LONG_S = 600.0  # that a first step may take
_KEEP_ALIVE_S = 10.0
_STEPS = 20  # where nobody keeps a status: so many times the last step's length without another one is silence


class LiveRun:
    """Events and status of a folder, as of the last `look`. Use as a context manager; may be used from any thread."""

    def __init__(self, folder: RunFolder, *, ignored: str = "") -> None:
        """`ignored`: an earlier run's stream, which is not to be shown (`stream_of`)."""
        self.folder = folder
        self.tail = EventTail(folder.path, ignored=ignored)
        self.status: Status | None = None
        self.closed = threading.Event()
        self._looking = threading.Lock()
        self._next_look = self._next_status = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        with self._looking:
            self.tail.close()

    def look(self) -> None:
        """See what is new, unless somebody has just done so."""
        with self._looking:
            now = time.monotonic()
            if self.closed.is_set() or (self.tail.complete and now < self._next_look):
                return
            self.tail.refresh(lambda: self.closed.is_set() or time.monotonic() >= now + _LONGEST_LOOK_S)
            self._next_look = time.monotonic() + LOOK_S
            if now >= self._next_status:
                self._next_status = now + _STATUS_S
                self.status = self.folder.status(self.tail.began)

    @property
    def how_it_ended(self) -> str | None:
        """Why there is nothing more to come, as far as one can tell from files: an `Ended.how`, or "lost" if the process that
        wrote is gone without a word, or hangs. A member that stopped, or is lost, may still come back."""
        if not self.tail.complete:
            return None
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


def messages(run: LiveRun, begin: Position | None) -> Iterator[bytes]:
    """Server-sent events for one viewer: history first, then what comes, until it has seen all there will ever be.

    Every message about events has the viewer's place in the stream as its id. A viewer that was dropped comes back with it and
    loses nothing, so slow ones can be dropped. An empty message says nothing, and lets a viewer go that has left."""
    yield b"retry: 2000\n\n"
    reader, status, end, sent_at = Reader(run.tail, begin), None, None, time.monotonic()
    while not run.closed.is_set():
        run.look()
        how = run.how_it_ended  # before the events are read: else the last of them could come after it
        before, (events, other) = reader.at.count, reader.new()
        first, now, news = 0 if other else before, reader.at, list[bytes]()
        if other and before:
            news.append(_message({}, event="reset"))  # another run: what was shown is not part of it
        if other or now.count > first:
            end = None
        if now.count > first:
            data = {"events": [_light(one) for one in events], "total": run.tail.position.count, "from": first}
            news.append(_message(data, place=now))
        if not (behind := reader.behind):
            if (present := run.status) is not None and present != status:
                status = present
                news.append(_message(status, event="status"))
            if how is None and end is not None:  # it was only silent
                news.append(_message({}, event="again"))
            elif how != end:
                news.append(_message({"how": how}, event="end"))
            end = how
        if not news and time.monotonic() >= sent_at + _KEEP_ALIVE_S:
            news.append(b": still here\n\n")
        sent_at = time.monotonic() if news else sent_at
        yield from news
        if end in FOR_GOOD:
            return
        yield b""
        if not behind:
            run.closed.wait(LOOK_S)


def _light(event: Event) -> Event:
    """Without what only one step's view needs, and a viewer asks for by itself (`/step`)."""
    return msgspec.structs.replace(event, owners=(), phases=()) if isinstance(event, Stepped) else event


def _message(data: object, *, event: str = "", place: Position | None = None) -> bytes:
    head = (f"event: {event}\n" if event else "") + (f"id: {place}\n" if place is not None else "")
    return head.encode() + b"data: " + msgspec.json.encode(data) + b"\n\n"  # JSON has no line breaks in it
