"""A run in this terminal: drawn while it goes on, or told in plain lines where nothing can be drawn.

Names and reasons come from strangers: whatever leaves here is printable. Nothing is told by colour alone: each cell has a sign.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Self

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from troth.errors import printable
from troth.events import phrases
from troth.events.kinds import Began, Ended, Event, Noted, Status, Stepped, Trial
from troth.watch.folder import RunFolder
from troth.watch.health import health
from troth.watch.live import FOR_GOOD, LOOK_S, LiveRun
from troth.watch.tail import Reader

MOST_STEPS = 300  # columns of the grid, and points of the curve
_SIGNS = {  # of what a peer did in a step, with style and meaning; a later one hides an earlier one
    " ": ("", ""),
    "c": ("blue", "on probation"),
    "-": ("yellow", "silent"),
    "·": ("dim", "contributed"),
    "v": ("cyan", "audits"),
    "✓": ("green", "clean"),  # recomputed by another, without a complaint
    "!": ("bold yellow", "accused"),
    "«": ("yellow", "left"),
    "✗": ("bold red", "banned"),
}
_RANK = {sign: rank for rank, sign in enumerate(_SIGNS)}
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = str.maketrans("·✓«✗–" + _BLOCKS, ".o<X-" + "_.-=+*%#")
_MOST_BACK = 20  # steps between a step and its audit that are looked through
_MOST_NAME, _MOST_NEWS, _MOST_METRICS = 16, 8, 16
_LEAST_GRID, _LEAST_WIDTH = 3, 24
_LINE_EVERY_S = 2.0


class TerminalView:
    """What a run looks like after some of its events, as wide and high as the terminal is now."""

    def __init__(self, *, news: bool = True, now: float | None = None) -> None:
        """`news`: False where they are printed above."""
        self.status: Status | None = None
        self._shows_news, self._now = news, now
        self._lock = threading.RLock()  # what another thread prints is drawn above, and this with it
        self.forget()

    def forget(self) -> None:
        """Begin again, with another run."""
        self._began: Began | None = None
        self._last: Stepped | None = None
        self._ended: Ended | None = None
        self._losses: deque[float] = deque(maxlen=MOST_STEPS)
        self._metrics: dict[str, float] = {}
        self._peers: dict[str, bool] = {}  # all that ever were, as they came; whether they are members now
        self._banned: set[str] = set()
        self._columns: deque[tuple[int, dict[str, str]]] = deque(maxlen=MOST_STEPS)  # steps, with the sign of each peer
        self._news: deque[str] = deque(maxlen=_MOST_NEWS)

    def follow(self, run: LiveRun, reader: Reader) -> Self:
        """Take everything that there is by now."""
        run.look()
        behind = True
        while behind:
            events, other = reader.new()
            if other:
                self.forget()
            for event in events:
                self.take(event)
            behind = reader.behind
        self.status = run.status
        return self

    def take(self, event: Event) -> None:
        with self._lock:
            self._news.extend(sentences(event))
            if isinstance(event, Ended):
                self._ended = event
            elif not isinstance(event, Noted):
                self._ended = None
            if isinstance(event, Began):
                self._peers = self._peers or {peer.name: True for peer in event.peers}
                self._began = event
            elif isinstance(event, Stepped):
                self._step(event)

    def _step(self, event: Stepped) -> None:
        self._last = event
        if event.loss is not None:
            self._losses.append(event.loss)
        self._metrics = dict(list((self._metrics | event.metrics).items())[:_MOST_METRICS])
        idle, gone = {*event.silent, *event.validators}, {*event.left, *event.expelled}
        banned, candidates = {ban.peer for ban in event.banned}, {one.name for one in event.candidates}
        cells = {name: "·" for name, here in self._peers.items() if here and name not in idle}
        for sign, names in ("c", candidates), ("-", event.silent), ("v", event.validators), ("«", gone), ("✗", banned):
            for name in names:
                _mark(cells, name, sign)
        self._columns.append((event.step, cells))
        past = dict(list(self._columns)[-_MOST_BACK:])
        done = {(audit.target, audit.step) for audit in event.audits}
        for name, step in done - {(work.peer, work.step) for work in event.unaudited}:
            if past.get(step, {}).get(name) == "·":  # nothing else could be clean
                past[step][name] = "✓"
        for trial in event.trials:
            _mark(past.get(trial.step, {}), trial.target, "!")
        self._peers |= dict.fromkeys((*event.joined, *(one.peer for one in event.returned)), True)
        self._peers |= dict.fromkeys((*gone, *banned), False)
        self._banned |= banned

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            lines = self._lines(console, options.max_width, max(1, (options.height or console.size.height) - 1))
        for one in lines:
            one.no_wrap, one.overflow = True, "crop"
            if not (options.encoding or "utf-8").lower().startswith("utf"):
                one.plain = one.plain.translate(_ASCII).encode("ascii", "replace").decode()
            yield one

    def _lines(self, console: Console, width: int, height: int) -> list[Text]:
        head = [*self._head(console, width)][:height]
        room = height - len(head)
        shown = min(len(self._news), room // 3) if self._shows_news else 0
        news = [Text(f"  {one}") for one in list(self._news)[len(self._news) - shown :]]
        return [*head, *self._grid(width, room - len(news)), *news]

    def _head(self, console: Console, width: int) -> Iterator[Text]:
        """Name, present and curve."""
        began, last, status = self._began, self._last, self.status
        if began is None:
            yield Text("No events yet: waits for the run to begin")
            return
        names = dict.fromkeys((began.name, began.task, f"as {began.me}" if began.me else ""))
        yield Text(printable(" · ".join(filter(None, names))), style="bold")
        if status is not None:
            phase = f"  {status.phase} of step {status.step}" if status.phase else ""
            present = health(Path(), status, time.time() if self._now is None else self._now).line() + phase
        else:
            present = "" if last is None else phrases.line(last, phrases.metrics_in_words(self._metrics))
        if self._ended is not None:
            present = f"{self._ended.how}  {self._ended.text}  {present}"
        yield from Text(printable(present)).wrap(console, max(1, width))
        if self._losses:
            label = f"batch loss {self._losses[-1]:.4g} "
            yield Text(label) + Text(sparkline(list(self._losses), min(60, max(1, width - len(label)))), style="cyan")

    def _grid(self, width: int, height: int) -> Iterator[Text]:
        """Peers × last steps, oneself first, with a legend of the signs that occur."""
        if not self._columns or height < _LEAST_GRID or width < _LEAST_WIDTH:
            return
        me = [] if self._began is None or not self._began.me else [self._began.me]
        rows = list(dict.fromkeys([*me, *self._peers, *(name for _, cells in self._columns for name in cells)]))
        fit = height - 1 if len(rows) < height else height - 2  # with room for the line about the others
        shown, hidden = rows[:fit], rows[fit:]
        name_width = min(_MOST_NAME, max(cell_len(name) for name in shown), width // 3)
        visible = list(self._columns)[-(width - name_width - 1) :]
        used = {sign for _, cells in visible for sign in cells.values()}
        legend = [f"  {sign} {meaning}" for sign, (_, meaning) in _SIGNS.items() if sign in used]
        yield Text(f"steps {visible[0][0]}–{visible[-1][0]}{''.join(legend)}", style="dim")
        for name in shown:
            label = set_cell_size(printable(name), name_width)
            text = Text(label, style="red strike" if name in self._banned else "").append(" ")
            for sign, some in groupby(cells.get(name, " ") for _, cells in visible):
                text.append(sign * len(list(some)), style=_SIGNS[sign][0])
            yield text
        if hidden:
            banned = len(self._banned.intersection(hidden))
            yield Text(f"and {len(hidden)} more peers, of whom {banned} banned", style="dim")


def _mark(cells: dict[str, str], name: str, sign: str) -> None:
    if _RANK[sign] > _RANK[cells.get(name, " ")]:
        cells[name] = sign


def sparkline(values: list[float], width: int) -> str:
    """A curve in one line; the highest value is the highest block."""
    finite = [value for value in values if abs(value) < float("inf")]
    if not finite:
        return ""
    # Halves: the difference of two very large numbers would be no number.
    low, span = min(finite) / 2, max(finite) / 2 - min(finite) / 2 or 1.0
    picked = [values[at * len(values) // min(width, len(values))] for at in range(min(width, len(values)))]
    shares = [(min(max(one, min(finite)), max(finite)) / 2 - low) / span for one in picked]
    return "".join(" " if one != one else _BLOCKS[int(share * 7.99)] for one, share in zip(picked, shares, strict=True))


def sentences(event: Event) -> list[str]:
    """Everything about an event that is worth a line of its own."""
    match event:
        case Began():
            liars = "" if event.withstands is None else f", of whom {event.withstands} may lie"
            told = [f"{event.name or event.task or 'a run'}: {event.of} steps with {len(event.peers)} peers{liars}"]
        case Noted():
            told = [event.text]
        case Ended():
            told = [f"the end: {event.text or event.how}"]
        case Stepped():
            acquitted = [
                f"{phrases.when(event)}: {_unconvicted(trial)}" for trial in event.trials if trial.banned is None
            ]
            told = [*filter(None, [phrases.pause(event)]), *phrases.sentences(event), *acquitted]
    return [printable(one) for one in told]


def _unconvicted(trial: Trial) -> str:
    """A trial that banned nobody. Where a part was disputed, its owner was accused by nobody."""
    how = {"withheld": f"{trial.target} is out", "accuser": "acquitted"}.get(trial.verdict, "dismissed")
    accusation = "a disputed part:" if trial.accuser is None else f"{trial.accuser} accused"
    return f"{accusation} {trial.target} ({trial.kind} of step {trial.step}): {how}"


def watch_here(folder: RunFolder, console: Console | None = None) -> None:
    """Show a run until it is over for good, or until Ctrl-C."""
    console = console or Console()
    with LiveRun(folder) as run, suppress(KeyboardInterrupt):
        if console.is_terminal and not console.is_dumb_terminal:  # nothing would ever be drawn there
            _watch_drawn(run, console)
        else:
            _watch_lines(run, console)


def _watch_drawn(run: LiveRun, console: Console) -> None:
    """On a screen of its own; afterwards the terminal is as it was, with the last picture below."""
    updated = partial(TerminalView().follow, run, Reader(run.tail))
    try:
        with Live(get_renderable=updated, console=console, screen=True, refresh_per_second=2):
            while run.how_it_ended not in FOR_GOOD:
                run.look()
                run.closed.wait(LOOK_S)
    finally:
        console.print(updated())


def _watch_lines(run: LiveRun, console: Console) -> None:
    """News at once, and how the run is doing every two seconds."""
    reader, metrics, last = Reader(run.tail), dict[str, float](), float("-inf")
    while True:
        run.look()
        for event in reader.new()[0]:
            lines = sentences(event)
            if isinstance(event, Stepped):
                metrics |= event.metrics
                if time.monotonic() >= last + _LINE_EVERY_S or event.updates == event.of:
                    last = time.monotonic()
                    lines.append(printable(phrases.line(event, phrases.metrics_in_words(metrics))))
            for one in lines:
                console.print(one, markup=False, highlight=False, soft_wrap=True)
        if not reader.behind:
            if run.how_it_ended in FOR_GOOD:
                return
            run.closed.wait(LOOK_S)


@contextmanager
def drawn_below(folder: RunFolder, console: Console) -> Iterator[Live]:
    """Draw the run of a folder below whatever this process prints meanwhile, as long as the `with` lasts.

    A thread draws; the process that trains prints its news as ever, and they scroll away above."""
    with LiveRun(folder) as run:
        updated = partial(TerminalView(news=False).follow, run, Reader(run.tail))
        # Of the two streams, what people read goes through the console; standard output may be a file.
        with Live(
            get_renderable=updated, console=console, refresh_per_second=1, transient=True, redirect_stdout=False
        ) as live:
            yield live
