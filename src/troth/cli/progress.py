"""Progress on standard error: a live bar on a terminal, a line every few seconds elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import typer

from troth.cli.fields import as_options
from troth.errors import printable
from troth.workshop.lab import results
from troth.workshop.lab.results import OutputError

if TYPE_CHECKING:
    from troth.workshop.simulation import StepReport


_LINE_EVERY_S = 5.0
_PATIENCE_S = 2.0  # before the first sign of life
_AGAIN_S = 10.0


@contextmanager
def telling(what: str) -> Iterator[Callable[[str], None]]:
    """Say what is being done, after two seconds and then every ten. The callable says that it is something else from now on."""
    over, now, began = threading.Event(), [what], time.monotonic()

    def tell() -> None:
        patience = _PATIENCE_S
        while not over.wait(patience):
            typer.echo(printable(f"{now[0]} … {time.monotonic() - began:.0f} s"), err=True)
            patience = _AGAIN_S

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield lambda other: now.__setitem__(0, other)
    finally:
        over.set()
        teller.join()


class Live:
    """Use as a context manager around one run; `step` is called after every step."""

    def __init__(self, label: str, steps: int, peers: int, *, beyond: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        self._label = label
        self._steps = steps
        self._beyond = beyond
        self._words = f"batch loss –  peers {peers}"
        self._metric = ""
        self._last_line = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("step {task.completed}/{task.total}  {task.fields[words]}"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task(label, total=steps, words=self._words)

    def step(self, report: "StepReport") -> None:
        from troth.events.phrases import withstanding

        if report.metrics:
            self._metric = _in_words(report.metrics) + "  "
        self._words = f"batch loss {report.loss:.3f}  {self._metric}peers {report.alive}"
        if report.guarantee is not None:
            self._words += f"  {withstanding(report.guarantee)}{' (beyond the guarantee)' if self._beyond else ''}"
        if report.attacked:
            self._words += "  under attack"
        if report.probation:
            self._words += "  on probation " + ", ".join(f"{peer}: {done}" for peer, done in report.probation)
        for note in report.notes:
            self._console.print(f"  step {report.step - 1}: {note}", highlight=False, soft_wrap=True)
        for ban in report.bans:
            self._console.print(
                f"  step {ban.step}: peer{ban.peer} is banned: {ban.reason}", highlight=False, soft_wrap=True
            )
        for peer in report.absent:
            self._console.print(
                f"  step {report.step - 1}: peer{peer} is absent, and no longer a member", highlight=False
            )
        self._progress.update(self._task, completed=report.step, words=self._words)
        if not self._console.is_terminal and time.monotonic() - self._last_line > _LINE_EVERY_S:
            self._last_line = time.monotonic()
            print(f"{self._label}: step {report.step}/{self._steps}  {self._words}", file=sys.stderr)

    def end(self, early: str) -> None:
        """Say why the run ended before its last step, if it did."""
        if early:
            self._console.print(f"  {early}", markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def _in_words(metrics: Mapping[str, float]) -> str:
    """The metric to watch: accuracy, or else the loss on test data, or else the first that the task has."""
    if "accuracy" in metrics:
        return f"accuracy {metrics['accuracy']:.1%}"
    name = "loss" if "loss" in metrics else next(iter(metrics))
    return f"test {name} {metrics[name]:.3g}"


class Tally:
    """Counts up to a total; use as a context manager. `say` prints to standard output, above the bar."""

    def __init__(self, label: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = Console(stderr=True)
        self._total = total
        self._last_line = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[words]}{task.fields[left]}"),
            console=self._console,
            disable=not self._console.is_terminal,
            redirect_stdout=False,  # else `say` would go to standard error, even if standard output is a file
            redirect_stderr=False,
            transient=True,
        )
        self._task = self._progress.add_task(label, total=total, words="", left="")

    def show(self, done: int, words: str, seconds_left: float | None = None) -> None:
        left = "" if seconds_left is None else f", {_duration(seconds_left)} left"
        self._progress.update(self._task, completed=done, words=words, left=left)
        now = time.monotonic()
        if not self._console.is_terminal and (now - self._last_line > _LINE_EVERY_S or done == self._total):
            self._last_line = now
            print(words, file=sys.stderr)

    def say(self, text: str) -> None:
        if self._console.is_terminal and sys.stdout.isatty():
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            typer.echo(text)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


# Output folders of commands: as `lab.results` says, with its fields as options.


__all__ = ["OutputError", "claim", "claimed"]

_OPTIONS = ("out", "overwrite")


def claim(folder: Path, config: dict[str, Any], *, overwrite: bool) -> Path:
    """Make the folder, and check that it can be written to and holds no other run's summary."""
    with as_options(_OPTIONS):
        return results.claim(folder, config, overwrite=overwrite)


@contextmanager
def claimed(folder: Path, config: dict[str, Any], *, overwrite: bool) -> Iterator[Path]:
    """Claim a folder for the work inside; if that fails, folders that were made for it and are still empty go again."""
    with as_options(_OPTIONS), results.claimed(folder, config, overwrite=overwrite) as made:
        yield made
