"""Everything that a peer tells, from one stream of events: people on the screen and in the log, programs, files.

Its present is for people and programs that look now and then: `status.json`, rewritten every second.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import msgspec

from troth.crypto import PeerId, Slot
from troth.errors import OperatorError
from troth.events import words
from troth.events.file import EVENTS, EventFile, last_steps, write_status
from troth.events.from_step import event_of_outcome
from troth.events.kinds import Doing, Ended, How, Link, Noted, Status, Stepped
from troth.network.manifest.manifest import Manifest
from troth.network.mesh.inbox import StoppedError
from troth.network.node.names import Names
from troth.network.node.options import NodeOptions
from troth.network.node.telling.beginning import beginning
from troth.network.node.telling.course import Course
from troth.network.node.telling.log import LogFile
from troth.network.node.telling.metrics import Metrics
from troth.network.node.telling.narrator import Narrator
from troth.network.node.telling.progress import Progress
from troth.network.node.telling.sink import EventSink
from troth.protocol.core.errors import CannotGoOnError
from troth.protocol.core.state import Outcome
from troth.protocol.wire.messages import Phase
from troth.training.work import Training

_SAMPLE_S = 0.1  # between two looks at the present
_WRITE_S = 1.0
_QUIET_S = 5.0  # without a step: then say for whom this peer waits
_LONG = 2  # times the usual length of a step
_NOTHING: dict[str, Any] = {
    "waits_for": "",
    "unheard": (),
    "phase": "",
    "since": None,
    "left_s": None,
}  # goes on at the end


class TellerError(OperatorError):
    """A folder into which a peer cannot write its events; the message names the file."""


@dataclass(frozen=True)
class Traffic:
    """Bytes so far."""

    control_bytes: int = 0  # received
    bulk_bytes: int = 0  # received
    sent_bytes: int = 0


@dataclass(frozen=True)
class Eyes:
    """What a peer sees of its run at any moment; asked from any thread."""

    traffic: Callable[[], Traffic]
    links: Callable[
        [Callable[[PeerId], str], Course], tuple[Link, ...]
    ]  # with names, and how often each was waited for
    place: Callable[[], tuple[Slot, frozenset[PeerId]] | None]  # slot that it is in, and who has not spoken in it
    waits_for: Callable[[], str | None]  # why nothing happens, in words


class Teller:
    """One peer's voice. Everything may be called from any thread, but `stepped`, which is the protocol's."""

    def __init__(
        self,
        manifest: Manifest,
        me: PeerId,
        options: NodeOptions,
        sink: EventSink,
        names: Names,
        eyes: Eyes,
    ) -> None:
        self._manifest = manifest
        self._me = manifest.name_of(me)
        self._options = options
        self._sink = sink
        self._names = names
        self._eyes = eyes
        self._log = Narrator(LogFile(options.folder / "log.txt").write, every_s=0.0)
        self._file: EventFile | None = None
        self._metrics = Metrics(
            options.folder,
            port=options.metrics_port,
            tensorboard=options.tensorboard,
            labels={"run": manifest.run.id.hex()[:16], "peer": self._me},
        )
        self._last: Stepped | None = None  # also one of an earlier process: how far this peer was when it stopped
        self._progress = Progress((), time.time())
        self._stepped = False  # whether a step has ended in this process
        self._last_metrics: dict[str, float] = {}
        self.course = Course(time.monotonic)
        self.quiet_s = _QUIET_S
        self._watching = False
        self._lived_at = self._told_at = time.monotonic()  # when something happened last; or was said to be awaited
        self._started_at = time.time()
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look_on, name="status", daemon=True)

    @property
    def paused(self) -> str | None:
        """Why the last step did not move the model, for people."""
        return words.pause(self._last) if self._last is not None and self._stepped else None

    # The stream

    @contextmanager
    def life(self) -> Iterator[None]:
        """Around the peer's life: the stream begins, and says how it ended. The folder is the peer's own by now."""
        try:
            self._begin()
            yield
        except (StoppedError, KeyboardInterrupt):
            self._end("stopped")
            raise
        except CannotGoOnError as why:
            self._end("out", str(why))
            raise
        except BaseException as error:
            self._end("error", f"{type(error).__name__}: {error}")
            raise
        else:
            self._end("over")
        finally:
            self._metrics.close()

    def _begin(self) -> None:
        folder = self._options.folder
        if before := last_steps(folder / EVENTS):
            self._last = before[-1]
            self._last_metrics = next((event.metrics for event in reversed(before) if event.metrics), {})
            self._progress = Progress(before, time.time())
            self._metrics.show(self._last)
        try:
            self._file = EventFile(folder / EVENTS)
        except OSError as error:
            raise TellerError(f"cannot write {folder / EVENTS}: {error.strerror}") from error
        self._file.add(
            msgspec.structs.replace(
                beginning(self._manifest, "member"),
                me=self._me,
                manifest=self._options.manifest_file,
                evidence=str(folder / "evidence"),
                at=time.time(),
            )
        )
        self._present = self._status()
        self._write(self._present)
        self._looking.start()

    def note(self, text: str) -> None:
        """Tell people, on the screen, in the log and in the stream: there once a minute, as long as nothing else happens."""
        if self._log.note(text) and self._file is not None:
            self._file.add(Noted(text=text, at=time.time()))
        self._sink.note(text)

    def _note_wait(self, text: str) -> None:
        """Tell for whom this peer waits. Where that is nobody, as within any long step, it is nothing to keep in the stream."""
        place = self._eyes.place()
        if place is None or place[1]:
            self.note(text)
        else:
            self._log.note(text)
            self._sink.note(text)

    def log(self, text: str) -> None:
        """Into the log alone: people are told by other means."""
        self._log.note(text)

    def stepped(
        self,
        outcome: Outcome[Training],
        *,
        seconds: float,
        loss: float,
        delta_s: float,
        metrics: dict[str, float] | None,
    ) -> None:
        """A step has ended."""
        manifest, traffic, step = self._manifest, self._eyes.traffic(), outcome.record.step
        event = msgspec.structs.replace(
            event_of_outcome(manifest.run, outcome, self._names, of=manifest.steps),
            at=time.time(),
            seconds=seconds,
            loss=None if isnan(loss) else loss,
            metrics=metrics or {},
            phases=self.course.phases(step, self._names),
            control_bytes=traffic.control_bytes,
            bulk_bytes=traffic.bulk_bytes,
            sent_bytes=traffic.sent_bytes,
            delta_s=delta_s,
            least_delta_s=manifest.timeouts.delta,
        )
        self.course.begin()
        self._last, self._last_metrics, self._stepped = event, event.metrics or self._last_metrics, True
        self._progress.stepped(event)
        self.lives()
        if self._file is not None:
            self._file.add(event)
        self._metrics.stepped(event)
        self._log.stepped(event)
        self._sink.stepped(event, outcome.record)

    def _end(self, how: How, text: str = "") -> None:
        if self._file is not None:
            self._file.add(Ended(how=how, text=text, at=time.time()))
            self._over.set()
            if self._looking.is_alive():
                self._looking.join()
            with suppress(Exception):  # how the peer ended is told whatever it looks like then
                self._present = self._status()
            self._write(msgspec.structs.replace(self._present, doing=how, text=text, **_NOTHING))
            self._file.close()

    # The present

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note for whom this peer waits, whenever nothing happens meanwhile."""
        self._watching = True
        self.lives()
        try:
            yield
        finally:
            self._watching = False

    def lives(self) -> None:
        """Something has happened."""
        self._lived_at = self._told_at = time.monotonic()

    def _look_on(self) -> None:
        due = time.monotonic() + _WRITE_S
        while not self._over.wait(_SAMPLE_S):
            # The protocol's thread changes what is looked at meanwhile: a look that fails is made again. If all of them do, the
            # status gets old, and everybody who reads it says so.
            with suppress(Exception):
                self._sample()
                if time.monotonic() >= due:
                    due = time.monotonic() + _WRITE_S
                    self._present = self._status()
                    self._write(self._present)

    def _sample(self) -> None:
        if (place := self._eyes.place()) is not None:
            self.course.sample(*place)
        quiet = self._watching and time.monotonic() >= self._told_at + self.quiet_s
        if quiet and (text := self._eyes.waits_for()) is not None:
            self._note_wait(text)
            self._told_at = time.monotonic()

    def _write(self, status: Status) -> None:
        here = {"at": time.time(), "started_at": self._started_at, "pid": os.getpid(), "memory_bytes": resident_bytes()}
        write_status(self._options.folder, msgspec.structs.replace(status, **here))

    def _status(self) -> Status:
        traffic, last, manifest = self._eyes.traffic(), self._last, self._manifest
        slot, unheard = self._eyes.place() or (None, frozenset())
        known, doing = {} if last is None else _known(last), self._doing(slot)
        trains = doing == "training"
        updates = 0 if last is None else last.updates
        status = Status(
            doing=doing,
            at=0.0,
            started_at=0.0,
            run=manifest.run.id.hex(),
            name=manifest.name,
            me=self._me,
            of=manifest.steps,
            step=slot.step if slot is not None else 0 if last is None else last.step + 1,
            phase="" if slot is None else Phase(slot.phase).name.lower(),
            attempt=0 if slot is None else slot.attempt,
            unheard=tuple(map(self._names, sorted(unheard))),
            waits_for="" if trains else (doing == "paused" and self.paused) or self._eyes.waits_for() or "",
            since=None if trains else self._progress.moved_at,
            left_s=self._progress.left_s(manifest.steps - updates) if trains else None,
            metrics=self._last_metrics,
            received_bytes=traffic.control_bytes + traffic.bulk_bytes,
            sent_bytes=traffic.sent_bytes,
            links=self._eyes.links(self._names, self.course),
            **known,
        )
        self._metrics.present(status)
        return status

    def _doing(self, slot: Slot | None) -> Doing:
        if slot is None:
            return "meeting"
        if self.paused is not None:
            return "paused"
        usual_s = self._progress.usual_s or 0.0
        return "waiting" if time.monotonic() >= self._lived_at + max(self.quiet_s, _LONG * usual_s) else "training"


def _known(last: Stepped) -> dict[str, Any]:
    """What the last step tells about the present."""
    return {
        "updates": last.updates,
        "members": last.members,
        "withstands": last.withstands,
        "quorum": last.quorum,
        "loss": last.loss,
        "seconds": last.seconds,
        "stepped_at": last.at,
        "delta_s": last.delta_s,
    }


def resident_bytes() -> int:
    """Memory of this process now; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
