"""Everything that a peer tells, from one stream of events: people on the screen and in the log, programs, files."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isnan
from typing import Any

import msgspec

from troth.crypto import PeerId, Slot
from troth.errors import OperatorError
from troth.events import words
from troth.events.file import EVENTS, EventFile
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
from troth.network.node.telling.narrator import Narrator, QuietWatch
from troth.network.node.telling.sink import EventSink
from troth.network.node.telling.status import StatusBoard
from troth.protocol.core.errors import CannotGoOnError
from troth.protocol.core.state import Outcome
from troth.protocol.wire.messages import Phase
from troth.training.work import Training


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
        [Callable[[PeerId], str], Counter[PeerId]], tuple[Link, ...]
    ]  # with names, and how often each was silent
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
        self._metrics = Metrics(options.folder, port=options.metrics_port, tensorboard=options.tensorboard)
        self._last: Stepped | None = None
        self._last_metrics: dict[str, float] = {}
        self._board = StatusBoard(options.folder, self._status, self._sample)
        self.watch = QuietWatch(eyes.waits_for, self.note)
        self.course = Course(time.monotonic)

    @property
    def paused(self) -> str | None:
        """Why the last step did not move the model, for people."""
        return None if self._last is None else words.pause(self._last)

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
        self._board.start()

    def note(self, text: str) -> None:
        """Tell people, on the screen, in the log and in the stream: there once a minute, as long as nothing else happens."""
        if self._log.note(text) and self._file is not None:
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
            delta_s=delta_s,
            least_delta_s=manifest.timeouts.delta,
        )
        self.course.begin()
        self._last, self._last_metrics = event, event.metrics or self._last_metrics
        self.watch.stepped()
        if self._file is not None:
            self._file.add(event)
        self._metrics.stepped(event)
        self._log.stepped(event)
        self._sink.stepped(event, outcome.record)

    def _end(self, how: How, text: str = "") -> None:
        if self._file is not None:
            self._file.add(Ended(how=how, text=text, at=time.time()))
            self._board.end(how, text)
            self._file.close()

    # The present

    def _sample(self) -> None:
        if (place := self._eyes.place()) is not None:
            self.course.sample(*place)

    def _status(self) -> Status:
        traffic, last, manifest = self._eyes.traffic(), self._last, self._manifest
        slot, unheard = self._eyes.place() or (None, frozenset())
        known, doing = {} if last is None else _known(last), self._doing(slot)
        return Status(
            doing=doing,
            at=0.0,
            started_at=0.0,
            run=manifest.run.id.hex(),
            name=manifest.name,
            me=self._me,
            of=manifest.steps,
            step=0 if slot is None else slot.step,
            phase="" if slot is None else Phase(slot.phase).name.lower(),
            attempt=0 if slot is None else slot.attempt,
            unheard=tuple(map(self._names, sorted(unheard))),
            waits_for="" if doing == "training" else self._eyes.waits_for() or "",
            metrics=self._last_metrics,
            received_bytes=traffic.control_bytes + traffic.bulk_bytes,
            sent_bytes=traffic.sent_bytes,
            links=self._eyes.links(self._names, self.course.silences),
            **known,
        )

    def _doing(self, slot: Slot | None) -> Doing:
        if slot is None:
            return "meeting"
        if self.paused is not None:
            return "paused"
        return "waiting" if self.watch.is_quiet else "training"


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
