"""Events on disk: `events.jsonl`, which only grows, and `status.json`, which holds the present."""

import os
import threading
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from troth.events.kinds import Event, Status, Stepped
from troth.files import open_regular

EVENTS, STATUS = "events.jsonl", "status.json"
UNDER_WAY = "events.partial.jsonl"  # of a simulation that has not ended: only then it takes the place of the last one's
MOST_LINE = 1 << 22  # bytes of an event
MOST_STATUS = 1 << 20
_LAST_BYTES = 2 * MOST_LINE  # of a stream that goes on: at least one line is whole
_T = TypeVar("_T")


class EventError(ValueError):
    """Bytes that are no event; the message says why."""


def encode_event(event: Event) -> bytes:
    """One line, with its end."""
    return msgspec.json.encode(event) + b"\n"  # NaN becomes null


def decode_event(line: bytes) -> Event:
    """Strictly, except that fields which later versions may add are passed over."""
    if len(line) > MOST_LINE:
        raise EventError(f"an event of {len(line):,} bytes: {MOST_LINE:,} are the most")
    return _decode(line, _EVENTS)


def decode_status(raw: bytes) -> Status:
    if len(raw) > MOST_STATUS:
        raise EventError(f"a status of {len(raw):,} bytes: {MOST_STATUS:,} are the most")
    return _decode(raw, _STATUS)


class EventFile:
    """Appends events, each a whole line; may be used from any thread. A disk that is full costs events, not the training."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        """`fresh`: what stands there is of another run, and goes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb" if fresh else "ab", buffering=0)
        self._lock = threading.Lock()
        self._torn = not fresh and not _ends_whole(path)

    def add(self, event: Event) -> None:
        line = encode_event(event)
        if len(line) > MOST_LINE and isinstance(event, Stepped):  # a thousand members vote in many trials
            line = encode_event(_shorter(event))
        try:
            with self._lock:
                if not self._file.closed:
                    written = self._file.write(b"\n" + line if self._torn else line)
                    self._torn = written < len(line)
        except OSError:
            self._torn = True

    def close(self) -> None:
        with self._lock:
            self._file.close()


def stream_in(folder: Path) -> Path:
    """The newest stream of a folder: that of the run that is under way there, or of the one that has ended."""
    partial = folder / UNDER_WAY
    return partial if partial.exists() else folder / EVENTS


def open_stream(folder: Path) -> BinaryIO | None:
    """The newest stream of a folder; None if there is none, or no ordinary file."""
    return open_regular(stream_in(folder))


def first_line(file: BinaryIO) -> bytes:
    """Of a stream, without its end; empty if it is not there yet."""
    file.seek(0)
    line, end, _ = file.read(MOST_LINE + 1).partition(b"\n")
    return line if end else b""


def first_event(folder: Path) -> Event | None:
    """Of a folder's stream: which run it is. None if there is none, or none that can be read."""
    with suppress(OSError, EventError), open_stream(folder) or BytesIO() as file:
        return decode_event(first_line(file))
    return None


def last_events(folder: Path) -> list[Event]:
    """The newest events of a folder's stream, as many as its last bytes hold; the newest last."""
    found: list[Event] = []
    with suppress(OSError), open_stream(folder) or BytesIO() as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
        for line in file.read(_LAST_BYTES).splitlines():
            with suppress(EventError):  # half a line at either end
                found.append(decode_event(line))
    return found


def write_status(folder: Path, status: Status) -> None:
    """Replace the status in one stroke, so that nobody reads half of it; a disk that is full costs the status only."""
    partial = folder / f"{STATUS}.partial"
    try:
        partial.write_bytes(msgspec.json.encode(status))
        partial.replace(folder / STATUS)  # no sync: after a power cut it would be out of date in any case
    except OSError:
        pass


def _shorter(event: Stepped) -> Stepped:
    """A step without what only one view needs: rather that is lost than the step with its bans."""
    trials = tuple(msgspec.structs.replace(trial, votes={}) for trial in event.trials)
    return msgspec.structs.replace(event, phases=(), trials=trials)


def _ends_whole(path: Path) -> bool:
    """Whether the last line of a file has its end, or there is none."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _decode(raw: bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
    try:
        return decoder.decode(raw)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise EventError(str(error)) from error


_EVENTS: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_STATUS = msgspec.json.Decoder(Status)
