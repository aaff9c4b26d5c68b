"""How members do, from their files alone: whether a status can still be believed, and one line about it."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from troth.errors import printable
from troth.events.file import first_event, last_events, stream_in
from troth.events.kinds import Began, Ended, Noted, Status, Stepped, present_after
from troth.events.phrases import duration, metrics_in_words, per_parameter, withstanding
from troth.watch.folder import RunFolder, read_status

_ENDED = ("over", "stopped", "out", "error")
_WELL = ("training", "over")
FRESH_S = 10.0  # after which a status of a process that is gone says nothing about now
SILENT_S = 60.0  # the same, whatever became of its process: it may hang, or its number be another's by now


def is_lost(status: Status, now: float) -> bool:
    """Whether a status should have been renewed, and was not. One of a time to come is: it was written before the clock was set
    right, and whoever lives writes every second."""
    age = now - status.at
    return age > SILENT_S or _is_ahead(age) or (age > FRESH_S and status.pid > 0 and not _is_alive(status.pid))


def _is_ahead(age_s: float) -> bool:
    """Whether something is of a time to come, by more than clocks differ: nobody knows how old it is."""
    return age_s < -FRESH_S


def _is_alive(pid: int) -> bool:
    """Whether there is a process of that number; it may be another one by now."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


@dataclass(frozen=True)
class Health:
    """A member's status, and what became of it since."""

    folder: Path
    status: Status
    age_s: float  # below zero if the status is of a time to come
    stale: bool  # it should have been renewed, and was not: the process is gone, or hangs

    @property
    def well(self) -> bool:
        return self.status.doing in _WELL and not self.stale

    def line(self) -> str:
        one = self.status
        said = "stale" if self.stale else one.doing
        parts = [
            f"{one.me or self.folder.name}: {said}",
            f"step {one.updates}/{one.of}",
            *([f"{one.members} members"] if one.members else []),
            *([withstanding(one.withstands)] if one.withstands is not None else []),
            *([f"batch loss {one.loss:.3f}"] if one.loss is not None else []),
            *([metrics_in_words(one.metrics)] if one.metrics else []),
            *([f"{one.seconds:.2f} s a step"] if one.seconds is not None and one.doing not in _ENDED else []),
            *([passed] if (passed := per_parameter(one.received_per_parameter, one.sent_per_parameter)) else []),
            *([f"about {duration(one.left_s)} left"] if one.left_s is not None and not self.stale else []),
            *([f"no update for {duration(one.at - one.since)}"] if one.since is not None and not self.stale else []),
            *([_waits(one)] if not self.stale and one.doing not in _ENDED and _waits(one) else []),
            *([one.text] if one.text else []),
            self._age(),
        ]
        return printable("  ".join(parts))

    def _age(self) -> str:
        """How long ago it was, as far as the clocks can tell."""
        ahead = f"at a time that is {duration(-self.age_s)} ahead of this machine's clock"
        when = ahead if self.age_s < 0 else f"{duration(self.age_s)} ago"
        if not self.stale:
            return when
        gone = f", and process {self.status.pid} is gone" if self.status.pid and not _is_alive(self.status.pid) else ""
        return f"last heard of {when}, {self.status.doing} then{gone}"


def healths(folder: RunFolder, now: float | None = None) -> Iterator[Health]:
    """Of the member whose folder this is; of each member, if it is a swarm's; of a simulation, from its events."""
    now = time.time() if now is None else now
    found = False
    for peer in ("", *folder.peers()):
        status = read_status(folder.path, peer)
        if status is not None:
            found = True
            yield health(folder.path / peer, status, now)
    if not found and (told := _from_events(folder.path)) is not None:
        yield health(folder.path, told, now)


def health(folder: Path, status: Status, now: float) -> Health:
    age = now - status.at
    return Health(
        folder,
        status,
        age if _is_ahead(age) else max(0.0, age),
        stale=status.doing not in _ENDED and is_lost(status, now),
    )


def _from_events(folder: Path) -> Status | None:
    """What the events say, where nobody keeps a status: simulations, and members that wrote none yet."""
    began, events = first_event(folder), last_events(folder)
    if not isinstance(began, Began):
        return None
    steps = [event for event in events if isinstance(event, Stepped)]
    last = steps[-1] if steps else None
    end = next((event for event in reversed(events) if not isinstance(event, Noted)), began)
    ended = end if isinstance(end, Ended) else None
    return Status(
        doing="training" if ended is None else ended.how,
        at=next((one.at for one in (ended, last, began) if one is not None and one.at), _changed_at(folder)),
        started_at=began.at or 0.0,
        run=began.run,
        name=began.name,
        me=began.me,
        of=began.of,
        metrics=next((one.metrics for one in reversed(steps) if one.metrics), {}),
        text="" if ended is None else ended.text,
        **({} if last is None else present_after(last)),
    )


def _changed_at(folder: Path) -> float:
    try:
        return stream_in(folder).stat().st_mtime
    except OSError:
        return 0.0


def _waits(status: Status) -> str:
    if status.waits_for:
        return status.waits_for
    if status.doing != "training" and status.unheard:
        return f"waits for {', '.join(status.unheard[:5])}"
    return ""
