"""What a run looks like after some of its events. Of a long run only the last steps are kept, and curves with fewer points."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from troth.errors import printable
from troth.events.kinds import Began, Ended, Event, Stepped
from troth.watch.terminal.words import sentences

MOST_STEPS = 300  # columns of the grid
_MOST_POINTS = 512
_MOST_BACK = 20  # steps between a step and its audit that are looked through
_MOST_NEWS = 50


class Cell(Enum):
    """What a peer did in a step; the later ones hide the earlier."""

    NOTHING = 0  # no member
    CANDIDATE = 1  # on probation
    SILENT = 2
    CONTRIBUTED = 3
    VALIDATOR = 4
    CLEAN = 5  # recomputed by another, without a complaint
    ACCUSED = 6
    GONE = 7  # left or expelled in this step
    BANNED = 8


@dataclass
class Curve:
    """A number over the steps; with many of them, every point is the mean of some."""

    points: list[float] = field(default_factory=list)
    last: float | None = None
    _each: int = 1  # values that make a point
    _sum: float = 0.0
    _count: int = 0

    def add(self, value: float) -> None:
        self.last = value
        self._sum, self._count = self._sum + value, self._count + 1
        if self._count == self._each:
            self.points.append(self._sum / self._count)
            self._sum, self._count = 0.0, 0
        if len(self.points) > _MOST_POINTS:
            pairs = self.points[: len(self.points) // 2 * 2]
            self.points = [(one + two) / 2 for one, two in zip(pairs[::2], pairs[1::2], strict=True)]
            self._each *= 2


@dataclass
class Column:
    """A step of the grid."""

    step: int
    cells: dict[str, Cell]

    def mark(self, peer: str, cell: Cell) -> None:
        if cell.value > self.cells.get(peer, Cell.NOTHING).value:
            self.cells[peer] = cell


class Picture:
    """Takes events one by one."""

    def __init__(self) -> None:
        self.began: Began | None = None
        self.last: Stepped | None = None
        self.ended: Ended | None = None
        self.loss = Curve()
        self.metrics: dict[str, Curve] = {}
        self.columns: deque[Column] = deque(maxlen=MOST_STEPS)
        self.peers: dict[
            str, bool
        ] = {}  # all that ever were, in the order of their coming; whether they are members now
        self.banned: set[str] = set()
        self.news: deque[str] = deque(maxlen=_MOST_NEWS)

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            self.news.extend(sentences(event))
            match event:
                case Began():
                    self._begin(event)
                case Stepped():
                    self._step(event)
                case Ended():
                    self.ended = event

    def _begin(self, event: Began) -> None:
        self.ended = None
        if self.began is None:
            self.peers = {peer.name: True for peer in event.peers}
        self.began = event

    def _step(self, event: Stepped) -> None:
        self.last, self.ended = event, None
        if event.loss is not None:
            self.loss.add(event.loss)
        for name, value in event.metrics.items():
            if len(self.metrics) < 16 or name in self.metrics:
                self.metrics.setdefault(name, Curve()).add(value)
        self._draw(event)
        for name in (*event.joined, *(one.peer for one in event.returned)):
            self.peers[name] = True
        gone = [ban.peer for ban in event.banned] + [*event.left, *event.expelled]
        for name in gone:
            self.peers[name] = False
        self.banned |= {ban.peer for ban in event.banned}

    def _draw(self, event: Stepped) -> None:
        idle = {*event.silent, *event.validators}
        column = Column(
            event.step, {name: Cell.CONTRIBUTED for name, here in self.peers.items() if here and name not in idle}
        )
        marks = (
            (event.silent, Cell.SILENT),
            (event.validators, Cell.VALIDATOR),
            ((one.name for one in event.candidates), Cell.CANDIDATE),
            ((*event.left, *event.expelled), Cell.GONE),
            ((one.peer for one in event.banned), Cell.BANNED),
        )
        for names, cell in marks:
            for name in names:
                column.mark(name, cell)
        self.columns.append(column)
        undone = {(work.peer, work.step) for work in event.unaudited}
        for audit in event.audits:
            if (audit.target, audit.step) not in undone:
                self._mark_past(audit.step, audit.target, Cell.CLEAN)
        for trial in event.trials:
            self._mark_past(trial.step, trial.target, Cell.ACCUSED)

    def _mark_past(self, step: int, peer: str, cell: Cell) -> None:
        for column in islice(reversed(self.columns), _MOST_BACK):
            if column.step == step:
                if cell is not Cell.CLEAN or column.cells.get(peer) is Cell.CONTRIBUTED:  # nothing else could be clean
                    column.mark(peer, cell)
                return

    @property
    def rows(self) -> list[str]:
        """Peers of the grid, by name as it may be printed: those of interest first, if somebody has to leave some out."""
        recent = {name for column in self.columns for name in column.cells}
        return sorted((name for name in {*self.peers, *recent}), key=self._interest)

    def _interest(self, name: str) -> tuple[int, int]:
        me = self.began is not None and self.began.me == name
        order = list(self.peers).index(name) if name in self.peers else len(self.peers)
        return (0 if me else 1, order)

    @property
    def title(self) -> str:
        if self.began is None:
            return ""
        names = dict.fromkeys((self.began.name, self.began.task, f"as {self.began.me}" if self.began.me else ""))
        return printable(" · ".join(filter(None, names)))
