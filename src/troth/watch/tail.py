"""Follows a folder's stream of events while it grows: which events there are and where they lie, not what they say.

The file may not exist yet, end in half a line, or be replaced by another run's. Only whole lines that decode count; the others
are skipped and counted. Memory is twenty bytes an event, whatever the events hold.
"""

import hashlib
import os
import re
import threading
from array import array
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from troth.events.file import MOST_LINE, EventError, decode_event, first_line, open_stream, stream_in
from troth.events.kinds import Began, Ended, Event, Noted, Stepped

MOST_EVENTS = 1 << 22
_CHUNK = 1 << 20  # bytes read at a time, so that those who wait for the lock never wait long
_ANCHOR = 64  # bytes before the place that was read to: they tell a file that was written anew
_MOST_AT_ONCE = 500  # events
_NO_STEP, _MOST_STEP = -1, 1 << 63


@dataclass(frozen=True)
class Position:
    """A place in a stream: so many events of the run whose first event has this digest. It means the same to another process."""

    count: int
    stream: str = ""  # empty: there is no event yet

    def __str__(self) -> str:
        return f"{self.count}-{self.stream}"

    @classmethod
    def read(cls, text: str) -> "Position | None":
        """What a viewer gives back; None if that is no position."""
        found = _POSITION.fullmatch(text)
        return None if found is None else cls(int(found[1]), found[2] or "")


_POSITION = re.compile(r"([0-9]{1,12})(?:-([0-9a-f]{1,16}))?")


class EventTail:
    """Index of a folder's events. May be used from any thread; `refresh` looks whether there is more."""

    def __init__(self, folder: Path, *, ignored: str = "") -> None:
        """`ignored`: the stream, by `stream_of`, that is there already and is none of ours."""
        self._folder = folder
        self._ignored = ignored
        self.skipped = 0  # lines that were no events
        self.complete = False  # whether the last `refresh` came to the end of the file
        self._lock = threading.RLock()
        self._file: BinaryIO | None = None
        self._clear()

    def _clear(self) -> None:
        self._at = 0  # bytes that were read: whole lines
        self._too_long = False  # but for this one, the rest of which is passed over
        self._anchor = b""
        self._stream = ""  # digest of the first event
        self._starts, self._lengths, self._steps = array("Q"), array("I"), array("q")
        self.began: Began | None = None  # the last beginning
        self._ended: Ended | None = None
        self.seconds: float | None = None  # that the last step took

    # What there is

    @property
    def position(self) -> Position:
        with self._lock:
            return Position(len(self._starts), self._stream)

    @property
    def ended(self) -> Ended | None:
        """The end of the stream, if nothing happened after it."""
        with self._lock:
            return self._ended

    @property
    def written_at(self) -> float | None:
        """When the file was last written to; None if there is no event."""
        with self._lock, suppress(OSError):
            if self._file is not None and self._starts:
                return os.fstat(self._file.fileno()).st_mtime
        return None

    def events(self, begin: Position, most: int, most_bytes: int = 1 << 20) -> tuple[list[Event], Position]:
        """The next events from there on, and the place behind them; none if another file is there now."""
        found: list[Event] = []
        count, taken = begin.count, 0
        while len(found) < most and (not found or taken < most_bytes):
            raw = self._raw(count, begin.stream)
            if raw is None:
                break
            count, taken = count + 1, taken + len(raw)
            with suppress(EventError):  # somebody writes into the file
                found.append(decode_event(raw))
        return found, Position(count, begin.stream)

    def step(self, number: int) -> Stepped | None:
        """The event of a step; of several, as those who come back may write, the last."""
        if not 0 <= number < _MOST_STEP:
            return None
        with self._lock:
            at = _last(self._steps, number)
            raw = None if at is None else self._raw(at, self._stream)
        with suppress(EventError):
            event = None if raw is None else decode_event(raw)
            return event if isinstance(event, Stepped) and event.step == number else None
        return None

    def _raw(self, number: int, stream: str) -> bytes | None:
        with self._lock:
            if stream != self._stream or number >= len(self._starts) or self._file is None:
                return None
            return self._read(self._lengths[number], self._starts[number])

    def _read(self, count: int, start: int) -> bytes:
        return b"" if self._file is None else os.pread(self._file.fileno(), count, start)

    # Looking for more

    def refresh(self, enough: Callable[[], bool] = lambda: False) -> bool:
        """Read on, to the end or until it is enough: a file may be larger than anybody wants to wait for. Whether there is
        anything new, which may be another file."""
        changed = stopped = False
        with suppress(OSError):  # a disk that fails: what was read stays, and the next look tries again
            while not (stopped := enough()) and self._read_some():
                changed = True
        self.complete = not stopped
        return changed

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _read_some(self) -> bool:
        """Read a piece. False if there is no more now."""
        with self._lock:
            begun = self._reopen_if_other()
            piece = self._read(_CHUNK, self._at)
            if len(piece) == _CHUNK and b"\n" not in piece:
                piece = self._read(MOST_LINE + 1, self._at)
            return self._take(piece) or begun

    def _reopen_if_other(self) -> bool:
        """Begin again if the name now stands for another file, or for one that was written anew. Whether that is so."""
        try:
            there = os.lstat(stream_in(self._folder))
        except OSError:  # gone: what was read may still be asked for, until there is another
            return False
        file = open_stream(self._folder) if self._is_other(there) else None
        if file is None:
            return False
        if self._ignored and _stream_at(file) == self._ignored:
            file.close()
            return False
        self.close()
        self._clear()
        self._file = file
        return True

    def _is_other(self, there: os.stat_result) -> bool:
        if self._file is None or not os.path.samestat(there, os.fstat(self._file.fileno())):
            return True
        if self._read(len(self._anchor), self._at - len(self._anchor)) != self._anchor:
            return True
        if there.st_size == self._at or not self._starts:
            return False
        return _digest(self._read(self._lengths[0], self._starts[0])) != self._stream

    def _take(self, piece: bytes) -> bool:
        """Index the lines of a piece that are whole; half a line is read again when there is more. Whether there was any."""
        whole = piece.rfind(b"\n") + 1
        if not whole and len(piece) <= MOST_LINE:
            return False
        start = self._at
        for line in piece[:whole].split(b"\n")[:-1]:
            self._index(line, start)
            start += len(line) + 1
        self._too_long |= not whole
        piece = piece[:whole] or piece
        self._at += len(piece)
        self._anchor = (self._anchor + piece[-_ANCHOR:])[-_ANCHOR:]
        return True

    def _index(self, line: bytes, start: int) -> None:
        too_long, self._too_long = self._too_long, False
        if not too_long and not line.strip():
            return
        try:
            if too_long or len(self._starts) >= MOST_EVENTS:
                raise EventError("too much")
            event = decode_event(line)
        except EventError:
            self.skipped += 1
            return
        if not self._starts:
            self._stream = _digest(line)
        self._starts.append(start)
        self._lengths.append(len(line))
        self._steps.append(event.step if isinstance(event, Stepped) and 0 <= event.step < _MOST_STEP else _NO_STEP)
        if isinstance(event, Ended):
            self._ended = event
        elif not isinstance(event, Noted):
            self._ended = None
        if isinstance(event, Began):
            self.began = event
        elif isinstance(event, Stepped):
            self.seconds = event.seconds


class Reader:
    """Takes what is new in a file of events, from a place on."""

    def __init__(self, tail: EventTail, at: Position | None = None) -> None:
        self.at = at or Position(0)
        self._tail = tail

    def new(self) -> tuple[list[Event], bool]:
        """The next events, and whether they are another run's: its first ones."""
        there = self._tail.position
        other = there.stream != self.at.stream or there.count < self.at.count
        if other:
            self.at = Position(0, there.stream)
        events, self.at = self._tail.events(self.at, _MOST_AT_ONCE)
        return events, other

    @property
    def behind(self) -> bool:
        return self.at != self._tail.position


def stream_of(folder: Path) -> str:
    """The stream that a folder holds now, as `Position.stream` names it; empty if there is none."""
    with suppress(OSError), open_stream(folder) or BytesIO() as file:
        return _stream_at(file)
    return ""


def _stream_at(file: BinaryIO) -> str:
    return _digest(line) if (line := first_line(file)) else ""


def _digest(line: bytes) -> str:
    return hashlib.blake2b(line, digest_size=8).hexdigest()


def _last(numbers: "array[int]", number: int) -> int | None:
    """The last place of a number."""
    at = None
    with suppress(ValueError):
        while True:
            at = numbers.index(number, 0 if at is None else at + 1)
    return at
