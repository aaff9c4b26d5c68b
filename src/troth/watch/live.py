"""A run that is followed: one thread looks at its files, and all viewers wait for what it finds."""

import os
import threading
import time
from typing import Self

from troth.events.kinds import Status
from troth.watch.folder import RunFolder
from troth.watch.tail import EventTail

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
