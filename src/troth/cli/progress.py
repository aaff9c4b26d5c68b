"""Progress on standard error, a live bar on a terminal or a line every few seconds elsewhere; and rows of results."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import typer

from troth.errors import printable

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

    from troth.evidence.file_format import RunSummary
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


Rows = list[tuple[str, str]]


def print_rows(rows: Rows) -> None:
    """Print a line for each; none is cut or wrapped, so that paths can be copied."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        typer.echo(f"{name:<{width}}  {value}")


def training_rows(summary: "RunSummary") -> Rows:
    """How far a run came, and how good its model is."""
    rows = [("steps", str(summary.steps))]
    for name, value in summary.metrics.items():
        rows.append((name, f"{value:.1%}" if name == "accuracy" else f"{value:.4g}"))
    if summary.details["diverged_at"] is not None:
        rows.append(("diverged", f"at step {summary.details['diverged_at']}: the model is ruined"))
    return rows


def caught_row(summary: "RunSummary") -> tuple[str, str]:
    liars = set(summary.byzantine)
    caught = len({ban["peer"] for ban in summary.details["banned"]} & liars)
    return "banned", f"{caught} of {len(liars)} liars, {summary.details['honest_banned']} honest"


class Bar:
    """A live bar on a terminal, a line every few seconds elsewhere; use as a context manager."""

    def __init__(self, label: str, total: float | None, *columns: "ProgressColumn", **settings: Any) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.console = Console(stderr=True)
        self._last_line = time.monotonic()
        description, bar = TextColumn("{task.description}"), BarColumn(bar_width=28)
        off = not self.console.is_terminal
        self._progress = Progress(description, bar, *columns, console=self.console, disable=off, **settings)
        self._task = self._progress.add_task(label, total=total, words="")

    def update(self, done: float, line: str, *, at_once: bool = False, **fields: Any) -> None:
        """`line` is for where there is no terminal; `at_once`: it is not left out there."""
        self._progress.update(self._task, completed=done, **fields)
        now = time.monotonic()
        if not self.console.is_terminal and (now - self._last_line > _LINE_EVERY_S or at_once):
            self._last_line = now
            print(line, file=sys.stderr)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class Live(Bar):
    """A simulated run; `step` is called after every step."""

    def __init__(self, label: str, steps: int, peers: int, *, beyond: bool = False) -> None:
        from rich.progress import TextColumn, TimeRemainingColumn

        words = TextColumn("step {task.completed}/{task.total}  {task.fields[words]}")
        super().__init__(label, steps, words, TimeRemainingColumn(compact=True))
        self._label = label
        self._steps = steps
        self._beyond = beyond
        self._metric = ""
        self._progress.update(self._task, words=f"batch loss –  peers {peers}")

    def step(self, report: "StepReport") -> None:
        from troth.events.phrases import withstanding

        if report.metrics:
            self._metric = _in_words(report.metrics) + "  "
        words = f"batch loss {report.loss:.3f}  {self._metric}peers {report.alive}"
        if report.guarantee is not None:
            words += f"  {withstanding(report.guarantee)}{' (beyond the guarantee)' if self._beyond else ''}"
        if report.attacked:
            words += "  under attack"
        if report.probation:
            words += "  on probation " + ", ".join(f"{peer}: {done}" for peer, done in report.probation)
        news = [f"step {report.step - 1}: {note}" for note in report.notes]
        news += [f"step {ban.step}: peer{ban.peer} is banned: {ban.reason}" for ban in report.bans]
        news += [f"step {report.step - 1}: peer{peer} is absent, and no longer a member" for peer in report.absent]
        for text in news:
            self._say(text)
        self.update(report.step, f"{self._label}: step {report.step}/{self._steps}  {words}", words=words)

    def end(self, early: str) -> None:
        """Say why the run ended before its last step, if it did."""
        if early:
            self._say(early)

    def _say(self, text: str) -> None:
        self.console.print(f"  {text}", markup=False, highlight=False, soft_wrap=True)


def _in_words(metrics: Mapping[str, float]) -> str:
    """The metric to watch: accuracy, or else the loss on test data, or else the first that the task has."""
    if "accuracy" in metrics:
        return f"accuracy {metrics['accuracy']:.1%}"
    name = "loss" if "loss" in metrics else next(iter(metrics))
    return f"test {name} {metrics[name]:.3g}"


class Tally(Bar):
    """Counts up to a total. `say` prints to standard output, above the bar."""

    def __init__(self, label: str, total: int, *, timed: bool = True, minutes: float | None = None) -> None:
        """`timed`: say how long the rest takes, which ends after so many minutes."""
        from rich.progress import TextColumn

        # Else `say` would go to standard error, even if standard output is a file.
        streams = {"redirect_stdout": False, "redirect_stderr": False}
        super().__init__(label, total, TextColumn("{task.fields[words]}"), **streams, transient=True)
        self._total, self._timed = total, timed
        self.began = time.monotonic()
        self.until = None if minutes is None else self.began + 60 * minutes
        self._first: int | None = None  # done before the time began

    def show(self, done: int, words: str) -> None:
        now = time.monotonic()
        self._first = done if self._first is None else self._first
        left = ""
        if self._timed and done > self._first:
            seconds = (self._total - done) * (now - self.began) / (done - self._first)
            seconds = seconds if self.until is None else max(0.0, min(seconds, self.until - now))
            left = f", {_duration(seconds)} left"
        self.update(done, words, at_once=done == self._total, words=words + left)

    def say(self, text: str) -> None:
        if self.console.is_terminal and sys.stdout.isatty():
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            typer.echo(text)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
