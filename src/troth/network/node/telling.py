"""Everything that a peer tells, as one stream of events: to people on the screen and in the log, to programs, into files.

`Course` measures a step, `StepProgress` how steps follow each other; `Narrator` makes lines for people; `Teller` is the peer's
voice, and rewrites its `status.json` every second for those who look now and then.
"""

import os
import re
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from math import isnan
from pathlib import Path
from statistics import median
from typing import Protocol

import msgspec

from troth.crypto import PeerId, Slot
from troth.errors import OperatorError
from troth.events import phrases
from troth.events.file import EVENTS, EventFile, last_events, write_status
from troth.events.from_step import began_by, event_of_outcome, known_peers
from troth.events.kinds import (
    Began,
    Doing,
    Ended,
    How,
    Link,
    Noted,
    PhaseTime,
    Source,
    Status,
    Stepped,
    present_after,
)
from troth.network.manifest.manifest import Manifest
from troth.network.mesh import StoppedError
from troth.network.node.founding import PeerNames
from troth.network.node.log import LogFile
from troth.network.node.metrics import Metrics
from troth.network.node.options import NodeOptions
from troth.protocol.core.records import StepRecord
from troth.protocol.core.run import CannotGoOnError
from troth.protocol.core.state import Outcome
from troth.protocol.wire.messages import Phase
from troth.training.work import Training

_MOST_PHASES = 64  # announcements of one step that are told: a step may have hundreds of attempts
_STEPS = 20  # whose length counts
_SOON_S = 10.0  # after which the same is said again before the first step: else it seems to hang …
_FIRST_S = 120.0  # … for so long at most
_AGAIN_S = 60.0  # after which something that has not changed is said again
_SAMPLE_S = 0.1  # between two looks at the present
_WRITE_S = 1.0
_QUIET_S = 5.0  # without a step: then say for whom this peer waits
_LONG = 2  # times the usual length of a step


@dataclass
class Course:
    """One step after another as this member sees it: when each announcement ended, and for whom it had to wait.

    `sample` comes from another thread; what it leaves is read when an announcement ends."""

    clock: Callable[[], float]
    silences: Counter[PeerId] = field(default_factory=Counter)  # announcements in which a member was not heard
    _began: float | None = None  # of this step
    _last_end: float = 0.0
    last: Counter[PeerId] = field(default_factory=Counter)  # announcements in which a member was heard last
    _waited_s: defaultdict[PeerId, float] = field(default_factory=lambda: defaultdict(float))  # in these, in all
    _waited: tuple[Slot, frozenset[PeerId], float] | None = None  # for these, in the latest sample; since when
    _phases: list[tuple[Slot, float, float, frozenset[PeerId]]] = field(default_factory=list)

    def begin(self) -> None:
        """A step begins, or the first one does."""
        self._began = self._last_end = self.clock()
        self._phases = []

    def sample(self, slot: Slot, unheard: frozenset[PeerId]) -> None:
        """Note for whom this peer waits now; called several times a second."""
        before = self._waited
        self._waited = (slot, unheard, before[2] if before is not None and before[0] == slot else self.clock())

    def announced(self, slot: Slot, heard: Iterable[PeerId], members: Iterable[PeerId]) -> None:
        """An announcement has ended with these voices."""
        now, waited, spoke = self.clock(), self._waited, frozenset(heard)
        self.silences.update(frozenset(members) - spoke)
        if self._began is None:
            self.begin()
        last, since = waited[1:] if waited is not None and waited[0] == slot else (frozenset[PeerId](), now)
        if len(last) < len(spoke) - 1:  # else nobody but this peer was earlier: it says nothing about the others
            for peer in last & spoke:
                self.last[peer] += 1
                self._waited_s[peer] += now - since
        if len(self._phases) < _MOST_PHASES:
            self._phases.append((slot, self._last_end, now, last))
        self._last_end = now

    def late_s(self, peer: PeerId) -> float | None:
        """How long a member was waited for where it was heard last, on average."""
        return self._waited_s[peer] / times if (times := self.last[peer]) else None

    def phases(self, step: int, name: Callable[[PeerId], str]) -> tuple[PhaseTime, ...]:
        """Those of a step that has ended."""
        began = self._began or 0.0
        return tuple(
            PhaseTime(
                phase=Phase(slot.phase).name.lower(),
                began=round(start - began, 4),
                ended=round(end - began, 4),
                attempt=slot.attempt,
                last=tuple(map(name, sorted(last))),
            )
            for slot, start, end, last in self._phases
            if slot.step == step
        )


def beginning(manifest: Manifest, source: Source, liars: Iterable[PeerId] = ()) -> Began:
    """The first event of a run that has a manifest, whoever tells it. `liars`: where that is known."""
    founders = sorted(manifest.founders, key=lambda founder: _counted(founder.name))
    peers = known_peers((founder.key for founder in founders), manifest.name_of, liars)
    return msgspec.structs.replace(
        began_by(manifest.run, source, manifest.steps, peers),
        name=manifest.name,
        task=manifest.task,
        least_delta_s=manifest.timeouts.delta,
    )


def _counted(name: str) -> list[str | int]:
    """For an order as people count: peer2 before peer10."""
    return [int(part) if part.isdecimal() else part for part in re.split("([0-9]+)", name)]


class StepProgress:
    """How a run gets on: since when its model has not moved, how long a step usually takes, and how long is left.

    Takes steps as they end, after those that were told before this peer came back. Times are Unix times."""

    def __init__(self, before: Iterable[Stepped] = ()) -> None:
        self.moved_at = time.time()  # end of the last step that moved the model; of the beginning, if there is none
        self._ends: deque[tuple[float, bool]] = deque(maxlen=_STEPS + 1)  # of steps, and whether they moved the model
        for event in before:
            self.stepped(event)

    def stepped(self, event: Stepped) -> None:
        if event.at is not None:
            self._ends.append((event.at, event.moved))
            if event.moved:
                self.moved_at = event.at

    @property
    def usual_s(self) -> float | None:
        """Time from update to update, pauses aside; None before there are two. The median: one long wait says nothing about
        the next."""
        gaps = [there - here for (here, _), (there, moved) in pairwise(self._ends) if moved and there >= here]
        return median(gaps) if gaps else None

    def left_s(self, updates: int) -> float | None:
        """Estimated time for so many more updates."""
        usual = self.usual_s
        return None if usual is None else usual * updates


class Narrator:
    """Events as lines for people: news at once, the state of the run now and then, a pause once a minute. Says them through
    `say`; may be called from any thread."""

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        every_s: float = 2.0,  # between two lines about the state of the run; 0: one for each step
        traffic: bool = False,
        lively: bool = False,  # what has not changed is said again soon, before the first step
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._every_s = every_s
        self._traffic = traffic
        self._clock = clock
        self._lively_until = clock() + _FIRST_S if lively else float("-inf")
        self._metrics = ""
        self.progress = StepProgress()
        self._last_line = float("-inf")
        self._paused_at: float | None = None  # when the pause was last told, while there is one
        self._noted: dict[str, float] = {}  # recent notes
        self._lock = threading.RLock()

    def note(self, text: str) -> bool:
        """A line at once; one that was just said, again after a minute, or sooner at first. Whether it was said."""
        with self._lock:
            now = self._clock()
            again_s = _SOON_S if now < self._lively_until else _AGAIN_S
            self._noted = {old: when for old, when in self._noted.items() if now < when + again_s}
            if text in self._noted:
                return False
            self._noted[text] = now
            self._say(text)
            return True

    def stepped(self, event: Stepped) -> None:
        """The news of a step, and a line about it if it is time for one."""
        with self._lock:
            self._lively_until = float("-inf")
            for sentence in phrases.sentences(event):
                self._say(sentence)
            self.progress.stepped(event)
            self._metrics = phrases.metrics_in_words(event.metrics) or self._metrics
            if not event.closing and not self._pause(event) and self._is_due(event):
                self._last_line = self._clock()
                left = phrases.time_left(self.progress.left_s(event.of - event.updates))
                traffic = f"  {phrases.traffic(event)}" if self._traffic else ""
                self._say(phrases.line(event, self._metrics) + left + traffic)

    def _is_due(self, event: Stepped) -> bool:
        return self._clock() >= self._last_line + self._every_s or event.updates == event.of

    def _pause(self, event: Stepped) -> bool:
        """Say once, and then every minute, that the model does not move; and once that it moves again."""
        now, why = self._clock(), phrases.pause(event)
        if why is None:
            if self._paused_at is not None:
                self._paused_at = None
                self._say(f"{phrases.when(event)}: the model moves again")
            return False
        if self._paused_at is None or now >= self._paused_at + _AGAIN_S:
            self._paused_at = self._noted[why] = now  # a peer that rests has no steps, and notes the same
            self._say(why)
        return True


class EventSink(Protocol):
    """A listener: a terminal, the parent process of a swarm, a program, a test. Takes events in the peer's thread, and notes in
    any."""

    def stepped(self, event: Stepped, record: StepRecord) -> None:
        """A step has ended, with this record."""

    def note(self, text: str) -> None:
        """One line for people."""


class TellerError(OperatorError):
    """A folder into which a peer cannot write its events; the message names the file."""


@dataclass(frozen=True)
class Traffic:
    """Bytes so far."""

    control_bytes: int = 0  # of messages received
    bulk_bytes: int = 0  # of messages received
    received_bytes: int = 0  # with their framing
    sent_bytes: int = 0


class BytesPerParameter:
    """Bytes that passed for each parameter and gradient, over the last steps of this process."""

    def __init__(self, numbers: int) -> None:
        """`numbers`: parameters times gradients of a step."""
        self._numbers = numbers
        self._passed: deque[tuple[int, int]] = deque(maxlen=_STEPS + 1)  # in and out, at the ends of steps

    def stepped(self, traffic: Traffic) -> dict[str, float]:
        """Fields of the event of a step; none after the first, before which others may have been caught up with."""
        self._passed.append((traffic.received_bytes, traffic.sent_bytes))
        if len(self._passed) == 1:
            return {}
        numbers = self._numbers * (len(self._passed) - 1)
        received, sent = ((now - then) / numbers for then, now in zip(self._passed[0], self._passed[-1], strict=True))
        return {"received_per_parameter": round(received, 4), "sent_per_parameter": round(sent, 4)}


@dataclass(frozen=True)
class Eyes:
    """What a peer sees of its run at any moment; asked from any thread."""

    traffic: Callable[[], Traffic]
    links: Callable[
        [Callable[[PeerId], str], Course], tuple[Link, ...]
    ]  # given names, and how often each was waited for
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
        names: PeerNames,
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
        self._stepped = False  # whether a step has ended in this process
        self._last_metrics: dict[str, float] = {}
        self._passed = BytesPerParameter(manifest.parameters.size * manifest.parameters.local_steps)
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
        return phrases.pause(self._last) if self._last is not None and self._stepped else None

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
        if before := [event for event in last_events(folder) if isinstance(event, Stepped)]:
            self._last = before[-1]
            self._last_metrics = next((event.metrics for event in reversed(before) if event.metrics), {})
            self._log.progress = StepProgress(before)
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

    def note(self, text: str, *, keep: bool = True) -> None:
        """Tell people, on the screen, in the log and in the stream: there once a minute, as long as nothing else happens. `keep`:
        False for what need not be in the stream."""
        if self._log.note(text) and keep and self._file is not None:
            self._file.add(Noted(text=text, at=time.time()))
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
            **self._passed.stepped(traffic),
            delta_s=delta_s,
            least_delta_s=manifest.timeouts.delta,
        )
        self.course.begin()
        self._last, self._last_metrics, self._stepped = event, event.metrics or self._last_metrics, True
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
            ended = {
                "doing": how,
                "text": text,
                "waits_for": "",
                "unheard": (),
                "phase": "",
                "since": None,
                "left_s": None,
            }
            self._write(msgspec.structs.replace(self._present, **ended))
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
            self.note(text, keep=place is None or bool(place[1]))  # any long step waits for nobody: nothing to keep
            self._told_at = time.monotonic()

    def _write(self, status: Status) -> None:
        here = {"at": time.time(), "started_at": self._started_at, "pid": os.getpid(), "memory_bytes": resident_bytes()}
        write_status(self._options.folder, msgspec.structs.replace(status, **here))

    def _status(self) -> Status:
        traffic, last, manifest = self._eyes.traffic(), self._last, self._manifest
        slot, unheard = self._eyes.place() or (None, frozenset())
        known, doing = {} if last is None else present_after(last), self._doing(slot)
        trains = doing == "training"
        if slot is not None:
            known |= {"step": slot.step}
        status = Status(
            doing=doing,
            at=0.0,
            started_at=0.0,
            run=manifest.run.id.hex(),
            name=manifest.name,
            me=self._me,
            of=manifest.steps,
            phase="" if slot is None else Phase(slot.phase).name.lower(),
            attempt=0 if slot is None else slot.attempt,
            unheard=tuple(map(self._names, sorted(unheard))),
            waits_for="" if trains else (doing == "paused" and self.paused) or self._eyes.waits_for() or "",
            since=None if trains else self._log.progress.moved_at,
            left_s=self._log.progress.left_s(manifest.steps - known.get("updates", 0)) if trains else None,
            metrics=self._last_metrics,
            received_bytes=traffic.received_bytes,
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
        usual_s = self._log.progress.usual_s or 0.0
        return "waiting" if time.monotonic() >= self._lived_at + max(self.quiet_s, _LONG * usual_s) else "training"


def resident_bytes() -> int:
    """Memory of this process now; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
