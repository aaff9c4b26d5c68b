"""How members do, from their files alone: whether a status can still be believed, and one line about it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from troth.errors import printable
from troth.events.file import EVENTS, STATUS
from troth.events.kinds import Doing, Status, Stepped
from troth.events.phrases import duration, metrics_in_words, withstanding
from troth.watch.folder import RunFolder, read_status
from troth.watch.live import is_ahead, is_alive, is_lost
from troth.watch.tail import EventTail, Position

_LAST = 50  # events that are looked through for the last step
_ENDED = ("over", "stopped", "out", "error")
_WELL = ("training", "over")


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
            *([f"about {duration(one.left_s)} left"] if one.left_s is not None and not self.stale else []),
            *([f"no update for {duration(one.at - one.since)}"] if one.since is not None and not self.stale else []),
            *([_waits(one)] if not self.stale and one.doing not in _ENDED and _waits(one) else []),
            *([one.text] if one.text else []),
            self._age(),
        ]
        return printable("  ".join(parts))

    @property
    def when(self) -> str:
        """How long ago it was, as far as the clocks can tell."""
        if self.age_s < 0:
            return f"at a time that is {duration(-self.age_s)} ahead of this machine's clock"
        return f"{duration(self.age_s)} ago"

    def _age(self) -> str:
        if not self.stale:
            return self.when
        gone = f", and process {self.status.pid} is gone" if self.status.pid and not is_alive(self.status.pid) else ""
        return f"last heard of {self.when}, {self.status.doing} then{gone}"


def healths(folder: RunFolder, now: float | None = None) -> Iterator[Health]:
    """Of the member whose folder this is; of each member, if it is a swarm's; of a simulation, from its events."""
    now = time.time() if now is None else now
    found = False
    for place in (folder.path, *folder.peers()):
        status = read_status(place / STATUS)
        if status is not None:
            found = True
            yield health(place, status, now)
    if not found and (told := _from_events(folder.path)) is not None:
        yield health(folder.path, told, now)


def health(folder: Path, status: Status, now: float) -> Health:
    age = now - status.at
    return Health(
        folder,
        status,
        age if is_ahead(age) else max(0.0, age),
        stale=status.doing not in _ENDED and is_lost(status, now),
    )


def _from_events(folder: Path) -> Status | None:
    """What the events say, where nobody keeps a status: simulations, and members that wrote none yet."""
    tail = EventTail(folder / EVENTS)
    tail.refresh()
    began, ended, there = tail.began, tail.ended, tail.position
    events, _ = tail.events(Position(max(0, there.count - _LAST), there.stream), _LAST)
    tail.close()
    if began is None:
        return None
    last = next((event for event in reversed(events) if isinstance(event, Stepped)), None)
    when = (ended.at if ended is not None else None) or (last.at if last is not None else None) or began.at
    doing: Doing = "training" if ended is None else ended.how
    known = dict[str, object]() if last is None else {
        "step": last.step + 1, "updates": last.updates, "members": last.members, "withstands": last.withstands, "loss": last.loss,
        "metrics": next((one.metrics for one in reversed(events) if isinstance(one, Stepped) and one.metrics), {}),
        "seconds": last.seconds, "stepped_at": last.at, "quorum": last.quorum,
    }  # fmt: skip
    return Status(
        doing=doing,
        at=when or _changed_at(folder / EVENTS),
        started_at=began.at or 0.0,
        run=began.run,
        name=began.name,
        me=began.me,
        of=began.of,
        text="" if ended is None else ended.text,
        **known,
    )


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _waits(status: Status) -> str:
    if status.waits_for:
        return status.waits_for
    if status.doing != "training" and status.unheard:
        return f"waits for {', '.join(status.unheard[:5])}"
    return ""
