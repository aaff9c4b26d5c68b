"""Showing a folder's run in this terminal while it goes on; or as plain lines, where the output is no terminal."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from troth.events.kinds import Event, Stepped
from troth.watch.folder import RunFolder
from troth.watch.live import FOR_GOOD, LiveRun
from troth.watch.tail import Position
from troth.watch.terminal.picture import Picture
from troth.watch.terminal.view import View
from troth.watch.terminal.words import line, sentences

_EVERY_S = 0.5  # between two drawings
_BESIDE_S = 1.0  # the same beside a training: it comes first
_LINE_EVERY_S = 2.0
_LOOK_S = 0.2
_MOST = 500  # events taken at a time


class _Reader:
    """Takes what is new in a run."""

    def __init__(self, run: LiveRun) -> None:
        self.run = run
        self._at = Position(0)

    def new(self) -> tuple[list[Event], bool]:
        """Events that have come, and whether they are another run's."""
        there = self.run.tail.position
        other = there.stream != self._at.stream or there.count < self._at.count
        if other:
            self._at = Position(0, there.stream)
        events, self._at = self.run.tail.events(self._at, _MOST)
        return events, other

    @property
    def behind(self) -> bool:
        return self._at != self.run.tail.position


class _Drawing:
    """A picture that follows a run."""

    def __init__(self, run: LiveRun, *, news: bool) -> None:
        self._reader = _Reader(run)
        self.view = View(Picture(), news=news)

    def update(self) -> None:
        while True:
            events, other = self._reader.new()
            if other:
                self.view.picture = Picture()
            self.view.picture.take(events)
            if not self._reader.behind:
                break
        self.view.status = self._reader.run.status


def watch_here(folder: RunFolder, console: Console | None = None) -> None:
    """Show a run until it is over for good, or until Ctrl-C."""
    console = console or Console()
    with LiveRun(folder) as run:
        run.viewer(+1)
        try:
            if console.is_terminal and not console.is_dumb_terminal:  # nothing would ever be drawn there
                _watch_drawn(run, console)
            else:
                _watch_lines(run, console)
        except KeyboardInterrupt:
            pass


def _watch_drawn(run: LiveRun, console: Console) -> None:
    """On a screen of its own; afterwards the terminal is as it was, with the last picture below."""
    drawing = _Drawing(run, news=True)
    try:
        with Live(drawing.view, console=console, screen=True, auto_refresh=False, transient=False) as live:
            while True:
                seen = run.changes
                drawing.update()
                live.refresh()
                if run.how_it_ended in FOR_GOOD:
                    break
                run.rest(_EVERY_S)
                run.wait(seen, _EVERY_S)  # the age of things changes too
    finally:
        console.print(drawing.view)


def _watch_lines(run: LiveRun, console: Console) -> None:
    """News at once, and how the run is doing every two seconds."""
    reader, lines = (
        _Reader(run),
        _Lines(lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True)),
    )
    while True:
        seen = run.changes
        events, _ = reader.new()
        for event in events:
            lines.take(event)
        if reader.behind:
            continue
        if run.how_it_ended in FOR_GOOD:
            return
        run.wait(seen, _LOOK_S)


class _Lines:
    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._metrics: dict[str, float] = {}
        self._last = float("-inf")

    def take(self, event: Event) -> None:
        for sentence in sentences(event):
            self._say(sentence)
        if not isinstance(event, Stepped):
            return
        self._metrics |= event.metrics
        if time.monotonic() >= self._last + _LINE_EVERY_S or event.updates == event.of:
            self._last = time.monotonic()
            self._say(line(event, self._metrics))


@contextmanager
def drawn_below(folder: RunFolder, console: Console) -> "Iterator[Drawn]":
    """Draw the run of a folder below whatever this process prints meanwhile, as long as the `with` lasts.

    A thread draws; the process that trains prints its news as ever, and they scroll away above."""
    with LiveRun(folder) as run:
        drawing = _Drawing(run, news=False)
        # Of the two streams, what people read goes through the console; standard output may be a file.
        with Live(drawing.view, console=console, auto_refresh=False, transient=True, redirect_stdout=False) as live:
            drawn = Drawn(live, drawing)
            thread = threading.Thread(target=drawn.go_on, name="draw the run", daemon=True)
            thread.start()
            try:
                yield drawn
            finally:
                drawn.over.set()
                thread.join()


class Drawn:
    """A run that is being drawn."""

    def __init__(self, live: Live, drawing: _Drawing) -> None:
        self.over = threading.Event()
        self._live = live
        self._drawing = drawing
        self._lock = threading.Lock()

    def draw(self) -> None:
        with self._lock:
            self._drawing.update()
            self._live.refresh()

    def go_on(self) -> None:
        while not self.over.wait(_BESIDE_S):
            self.draw()
