"""Progress of a count, on standard error: a bar on a terminal, a line every few seconds elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

import typer

_LINE_EVERY_S = 5.0


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
