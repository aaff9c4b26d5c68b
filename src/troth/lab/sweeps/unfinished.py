"""Runs under way, kept on disk: `unfinished/KEY.safetensors` in the folder of a sweep, until the run's result is there."""

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from troth.aggregation import UnwritableError
from troth.processes import asked_to_stop
from troth.simulation import Scenario, Started, start
from troth.simulation.lockstep.snapshots.file import read_snapshot, write_snapshot
from troth.simulation.lockstep.snapshots.snapshot import Snapshot, SnapshotError

FOLDER = "unfinished"
EVERY_S = 60.0
MOST_BYTES = 4 << 30
GRACE_S = 20.0  # for runs that are asked to stop: to the end of their step, and to write

_ENDING = ".safetensors"
_LOOK_EVERY_S = 0.25  # whether the run is to stop
_SHARE = 20  # writing takes at most one part in so many of the time


@dataclass(frozen=True)
class Keeping:
    """Where and how often runs under way are kept."""

    folder: str  # absolute: a run works in the folder of its sweep
    every_s: float = EVERY_S  # at most so often
    most_bytes: int = MOST_BYTES

    @classmethod
    def beside(cls, results: Path, every_s: float = EVERY_S, most_bytes: int = MOST_BYTES) -> "Keeping":
        """In the folder of a sweep's results."""
        return cls(str((results / FOLDER).absolute()), every_s, most_bytes)

    def path(self, key: str) -> Path:
        return Path(self.folder) / (key + _ENDING)


def halfway(results: Path, keys: Collection[str]) -> set[str]:
    """Those of the runs that are kept half-way."""
    return {path.name.removesuffix(_ENDING) for path in (results / FOLDER).glob("*" + _ENDING)} & set(keys)


def forget(results: Path, key: str) -> None:
    """Remove what was kept of a run, and what was cut off while it was written."""
    with suppress(OSError):  # it is in nobody's way
        for path in (results / FOLDER).glob(f"{key}.*"):
            path.unlink(missing_ok=True)
        (results / FOLDER).rmdir()


class Keeper:
    """Begins a run, or goes on with it, and keeps it while it is under way. A run never fails because of that."""

    def __init__(self, key: str, keeping: Keeping | None) -> None:
        self._key = key
        self._keeping = keeping
        self._began = time.monotonic()
        self._before = 0.0  # seconds that the run had taken when it was stopped
        self._next_look = self._began
        self._next_write = self._began + (keeping.every_s if keeping is not None else 0.0)
        self.resumed: int | None = None  # step at which it went on
        self.notes: list[str] = []  # for people
        self._cannot = False

    @property
    def seconds(self) -> float:
        """How long the run took, before it was stopped and since."""
        return self._before + time.monotonic() - self._began

    def begin(self, scenario: Scenario) -> Started:
        snapshot = self._read()
        if snapshot is not None:
            try:
                run = start(scenario, snapshot, of=self._key, evidence=False)
                self.resumed = run.step
                return run
            except SnapshotError as error:
                self._refused(error)
        return start(scenario, of=self._key, evidence=False)

    def _read(self) -> Snapshot | None:
        if self._keeping is None:
            return None
        try:
            snapshot, seconds = read_snapshot(self._keeping.path(self._key))
            self._before = float(seconds)
        except FileNotFoundError:
            return None
        except (OSError, SnapshotError, ValueError) as error:
            self._refused(error)
            return None
        return snapshot

    def _refused(self, error: Exception) -> None:
        self._before = 0.0
        self.notes.append(f"it began anew, since what was kept of it cannot be used: {error}")

    def stops_after(self, run: Started) -> bool:
        """Called after every step: keeps the run if it is time, and tells whether it is to stop. Mostly one look at the clock."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_EVERY_S
        stop = asked_to_stop()
        if stop or now >= self._next_write:
            self.keep(run)
        return stop

    def keep(self, run: Started) -> None:
        if self._keeping is None or self._cannot:
            return
        began = time.monotonic()
        try:
            snapshot, path = run.snapshot(self._keeping.most_bytes), self._keeping.path(self._key)
            path.parent.mkdir(exist_ok=True)
            write_snapshot(path, snapshot, repr(self.seconds))
        except UnwritableError as error:
            self._cannot = True
            self.notes.append(f"it is not kept while it is under way: {error}")
        except OSError as error:
            self._cannot = True
            self.notes.append(f"it could not be kept while it was under way: {error}")
        now = time.monotonic()
        self._next_write = now + max(self._keeping.every_s, _SHARE * (now - began))
