"""The heat map: rows against columns, both in the order of their means, every cell a number with its marks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from textwrap import fill
from typing import Any

from troth.lab.report.figures import INK, LETTER, LINE, MUTED, PAPER, Picture, rendered
from troth.lab.report.measures import legend, lost_to, marks
from troth.lab.report.numbers import mean
from troth.lab.report.records import Label, Run, show
from troth.lab.report.study import Study
from troth.lab.report.tables import Column, Table, number

_HOT = "#c4472d"
_WHITE_ABOVE = 0.85  # heat from which white is read more easily than ink
_NO_ATTACK = "no attack"
_AVERAGE = "average"  # of a column; not "mean", which is a defence
_MOST = 24  # values of the other axes that get maps
_LEAST_SPAN = 10.0  # points from the palest to the strongest colour: noise looks like noise
_HELP = (
    "Columns stand from the best mean to the worst, over the rows that all of them have, and are numbered so; rows from the "
    "worst to the best. An axis of numbers keeps its own order. A cell without a number counts as the worst there is."
)


@dataclass(frozen=True)
class HeatCell:
    """A mean over seeds, how bad it is from 0 to 1, and its marks. No value: no run, or none with a number."""

    value: float | None
    heat: float
    marks: str

    def text(self, digits: int | None) -> str:
        return f"{number(self.value, digits)} {self.marks}".rstrip()


@dataclass(frozen=True)
class HeatMap:
    """Numbers by row and column, best column first and worst row first."""

    name: str
    title: str
    note: str
    corner: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    ranks: tuple[int, ...]  # of the columns, 1 is the best
    cells: tuple[tuple[HeatCell, ...], ...]
    means: tuple[float | None, ...]  # of the columns
    above: tuple[float | None, ...] | None  # a row that is no part of the map: finals without attack
    digits: int | None

    def table(self) -> Table:
        titles = [f"{rank}. {name}" for rank, name in zip(self.ranks, self.columns, strict=True)]
        rows: list[tuple[str, ...]] = [(_AVERAGE, *(number(value, self.digits) for value in self.means))]
        if self.above:
            rows.append((f"{_NO_ATTACK}, final", *(number(value, self.digits) for value in self.above)))
        rows += [(name, *(c.text(self.digits) for c in line)) for name, line in zip(self.rows, self.cells, strict=True)]
        return Table(self.name, self.title, self.note, (Column(self.corner), *map(Column, titles)), rows, folded=True)

    def picture(self) -> Picture:
        slant = 0.75 * LETTER * min(28, max(map(len, self.columns)) + 4)  # up, and out to the right
        width = max(5.5, 0.5 + LETTER * min(32, max(map(len, self.rows))) + 0.72 * len(self.columns) + slant)
        footnote = fill(self.note, int(width / 0.056))
        height = 1.2 + slant + 0.34 * len(self.rows) + 0.13 * (footnote.count("\n") + 1)
        return Picture(
            self.name, self.title, "", rendered((width, height), lambda figure: self._draw(figure, footnote))
        )

    def _draw(self, figure: Any, footnote: str) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        axes = figure.subplots()
        colours = LinearSegmentedColormap.from_list("heat", [PAPER, _HOT])
        axes.imshow([[cell.heat for cell in line] for line in self.cells], cmap=colours, vmin=0, vmax=1, aspect="auto")
        for y, line in enumerate(self.cells):
            for x, cell in enumerate(line):
                colour = PAPER if cell.heat > _WHITE_ABOVE else INK
                axes.text(x, y, cell.text(self.digits), ha="center", va="center", color=colour, fontsize=8.5)
        names = [
            f"{rank}. {show(name, 24)}\n{number(value, self.digits)}"
            for rank, name, value in zip(self.ranks, self.columns, self.means, strict=True)
        ]
        axes.set_xticks(range(len(names)), names, rotation=40, ha="left", rotation_mode="anchor", color=INK)
        axes.set_yticks(range(len(self.rows)), [show(name, 32) for name in self.rows], color=INK)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xticks([x + 0.5 for x in range(len(names) - 1)], minor=True)
        axes.set_yticks([y + 0.5 for y in range(len(self.rows) - 1)], minor=True)
        axes.grid(which="minor", color=LINE, linewidth=0.7)
        axes.tick_params(which="minor", length=0)
        figure.suptitle(show(self.title, 90), fontsize=11, color=INK)
        figure.supxlabel(footnote, fontsize=7, color=MUTED, ha="center")


def heat_maps(study: Study) -> list[HeatMap]:
    """What was lost against no attack, where the sweep has such runs, and the final metric; for each value of the other axes."""
    if study.compare is None:
        return []
    metric, rest = study.metric, study.rest(*study.compare)
    found = []
    for words, name, runs in study.facets(rest)[:_MOST]:
        if len(study.cells(study.compare, runs)) == 1:
            continue  # the tables have that number
        where, suffix = (f": {words}", f"-{name}") if rest else ("", "")
        attacked = [run for run in runs if not run.calm and study.without_attack(run) is not None]
        lost = {run.key: lost_to(study, study.without_attack, run) for run in attacked}
        if sum(value is not None for value in lost.values()) * 2 > len(lost):
            title = f"{metric.name.capitalize()} lost against no attack{where}"
            note = f"Difference to the same without attack{', in points' if metric.share else ''}; mean over seeds."
            values = lambda run, lost=lost: lost[run.key]  # noqa: E731
            found.append(_heat_map(study, "heatmap-lost" + suffix, (title, note), attacked, values, lost=True))
        title = f"Final {metric.name}{metric.in_title}{where}"
        note = f"{metric.name.capitalize()} at the last evaluation, mean over seeds."
        found.append(_heat_map(study, "heatmap-final" + suffix, (title, note), runs, metric.scaled, lost=False))
    return found


def _heat_map(
    study: Study,
    name: str,
    words: tuple[str, str],
    runs: Sequence[Run],
    value: Callable[[Run], float | None],
    *,
    lost: bool,
) -> HeatMap:
    assert study.compare is not None
    across, down = study.compare[1], study.compare[0]
    cells = {key: (mean(map(value, some)), marks(some)) for key, some in study.cells(study.compare, runs).items()}
    known = [number for number, _ in cells.values() if number is not None] or [0.0]
    sign = 1.0 if lost or not study.metric.higher else -1.0  # of what is bad
    worst = max(known, key=lambda number: sign * number)
    zero = 0.0 if lost else min(known, key=lambda number: sign * number)
    span = max(abs(worst - zero), _LEAST_SPAN if study.metric.share else 1e-12)

    def heat(number: float | None) -> float:
        """From 0 to 1. The square root, so that one point lost can be told from none beside a defence that loses ninety."""
        return 1.0 if number is None else sqrt(min(1.0, max(0.0, sign * (number - zero)) / span))

    def middle(keys: list[tuple[Label, ...]]) -> float | None:
        return mean(worst if (number := cells[key][0]) is None else number for key in keys if key in cells)

    rows, columns = (list(dict.fromkeys(key[at] for key in cells)) for at in (0, 1))
    shared = [row for row in rows if all((row, column) in cells for column in columns)] or rows
    means = {column: middle([(row, column) for row in shared]) for column in columns}
    ranked = sorted(columns, key=lambda column: sign * (means[column] or 0.0))
    columns = columns if across in study.numeric_axes else ranked
    if down not in study.numeric_axes:
        rows.sort(key=lambda row: -sign * (middle([(row, column) for column in columns]) or 0.0))
    made = {key: HeatCell(number, heat(number), signs) for key, (number, signs) in cells.items()}
    nothing = HeatCell(None, 0.0, "")
    return HeatMap(
        name=name,
        title=words[0],
        note=f"{words[1]} {_HELP}{legend(study)}",
        corner=" × ".join(map(show, study.compare)),
        rows=tuple(_NO_ATTACK if row == "none" else show(row) for row in rows),
        columns=tuple(map(show, columns)),
        ranks=tuple(ranked.index(column) + 1 for column in columns),
        cells=tuple(tuple(made.get((row, column), nothing) for column in columns) for row in rows),
        means=tuple(means[column] for column in columns),
        above=_calm_row(study, runs, columns) if lost else None,
        digits=study.metric.digits,
    )


def _calm_row(study: Study, attacked: Sequence[Run], columns: Sequence[Label]) -> tuple[float | None, ...]:
    """What every column reaches without attack."""
    assert study.compare is not None
    finals = []
    for value in columns:
        own = [study.without_attack(run) for run in attacked if run.labels[study.compare[1]] == value]
        finals.append(mean(map(study.metric.scaled, {run.key: run for run in own if run is not None}.values())))
    return tuple(finals)
