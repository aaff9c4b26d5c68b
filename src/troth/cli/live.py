"""Progress on standard error: a live bar on a terminal, a line every few seconds elsewhere."""

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from troth.simulation import StepReport

_LINE_EVERY_S = 5.0


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
        if report.metrics:
            self._metric = _in_words(report.metrics) + "  "
        self._words = f"batch loss {report.loss:.3f}  {self._metric}peers {report.alive}"
        if report.guarantee is not None:
            self._words += f"  withstands {report.guarantee}{' (beyond the guarantee)' if self._beyond else ''}"
        if report.attacked:
            self._words += "  under attack"
        for ban in report.bans:
            self._console.print(
                f"  step {ban.step}: peer {ban.peer} is banned: {ban.reason}", highlight=False, soft_wrap=True
            )
        for peer in report.absent:
            self._console.print(
                f"  step {report.step - 1}: peer {peer} is absent, and no longer a member", highlight=False
            )
        self._progress.update(self._task, completed=report.step, words=self._words)
        if not self._console.is_terminal and time.monotonic() - self._last_line > _LINE_EVERY_S:
            self._last_line = time.monotonic()
            print(f"{self._label}: step {report.step}/{self._steps}  {self._words}", file=sys.stderr)

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
