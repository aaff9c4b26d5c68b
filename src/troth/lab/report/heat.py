"""The heat map: rows against columns, both in the order of their means, every cell a number with its marks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from troth.lab.report.figures import INK, LETTER, LINE, MUTED, PAPER, rendered
from troth.lab.report.markup import Html, element, joined
from troth.lab.report.measures import legend, lost_to, marks
from troth.lab.report.numbers import mean
from troth.lab.report.records import Label, Run, show
from troth.lab.report.study import Study
from troth.lab.report.tables import Column, Table, number, scrolling

_HOT = "#c4472d"
_WHITE_ABOVE = 0.85  # heat from which white is read more easily than ink
_NO_ATTACK = "no attack"
_AVERAGE = "average"  # of a column; not "mean", which is a defence
_MOST = 24  # values of the other axes that get maps
_LEAST_SPAN = 10.0  # points from the palest to the strongest colour: noise looks like noise


@dataclass(frozen=True)
class HeatCell:
    """A mean over seeds, how bad it is from 0 to 1, and its marks. No value: no run, or none with a number."""

    value: float | None
    heat: float
    marks: str


@dataclass(frozen=True)
class HeatMap:
    """Numbers by row and column, best column first and worst row first."""

    name: str
    title: str
    note: str
    help: str  # how to read it
    corner: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    ranks: tuple[int, ...]  # of the columns, 1 is the best
    cells: tuple[tuple[HeatCell, ...], ...]
    means: tuple[float | None, ...]  # of the columns
    above: tuple[str, tuple[float | None, ...]] | None  # a row that is no part of the map, and its name
    digits: int | None

    def files(self) -> dict[str, bytes]:
        png, svg = rendered(self.name, (self._width, self._height), self._draw)
        return {f"figures/{self.name}.png": png, f"figures/{self.name}.svg": svg, **self.table().files()}

    @property
    def _width(self) -> float:
        """Of the figure, in inches."""
        return max(5.5, 0.5 + LETTER * min(32, max(map(len, self.rows))) + 0.72 * len(self.columns) + self._slant)

    @property
    def _height(self) -> float:
        return 1.2 + self._slant + 0.34 * len(self.rows) + 0.13 * (self._footnote.count("\n") + 1)

    @property
    def _slant(self) -> float:
        """How far the columns' slanted names reach up, and out to the right."""
        return 0.75 * LETTER * min(28, max(map(len, self.columns)) + 4)

    @property
    def _footnote(self) -> str:
        return _wrapped(f"{self.note} {self.help}", int(self._width / 0.056))

    def table(self) -> Table:
        titles = [f"{rank}. {name}" for rank, name in zip(self.ranks, self.columns, strict=True)]
        rows: list[tuple[str, ...]] = [(_AVERAGE, *(number(value, self.digits) for value in self.means))]
        if self.above:
            rows.append((self.above[0], *(number(value, self.digits) for value in self.above[1])))
        rows += [(name, *(self._text(cell) for cell in line)) for name, line in zip(self.rows, self.cells, strict=True)]
        return Table(
            self.name, self.title, f"{self.note} {self.help}", (Column(self.corner), *map(Column, titles)), rows
        )

    def html(self) -> Html:
        head = [
            element("th", element("span", f"{rank}.", class_="rank"), name, scope="col", class_="n")
            for rank, name in zip(self.ranks, self.columns, strict=True)
        ]
        lines = [element("tr", element("th", self.corner, class_="corner", scope="col"), *head)]
        lines.append(self._plain_row(_AVERAGE, self.means))
        if self.above:
            lines.append(self._plain_row(*self.above))
        body = [
            element("tr", element("th", name, scope="row"), *map(self._cell, line))
            for name, line in zip(self.rows, self.cells, strict=True)
        ]
        table = element("table", element("thead", *lines), element("tbody", *body), class_="heat")
        return element(
            "figure", element("h3", self.title), scrolling(table, self.title), element("figcaption", self.note)
        )

    def _plain_row(self, name: str, values: Sequence[float | None]) -> Html:
        cells = [element("td", number(value, self.digits), class_="n") for value in values]
        return element("tr", element("th", name, scope="row"), *cells, class_="plain")

    def _cell(self, cell: HeatCell) -> Html:
        sign = [element("sup", cell.marks)] if cell.marks else []
        content = joined(number(cell.value, self.digits), *sign)
        kind = "n hot" if cell.heat > _WHITE_ABOVE else "n"
        return element("td", content, class_=kind, style=f"--heat:{100 * cell.heat:.0f}%" if cell.heat else None)

    def _text(self, cell: HeatCell) -> str:
        return f"{number(cell.value, self.digits)}{cell.marks and ' ' + cell.marks}"

    def _draw(self, figure: Any) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        axes = figure.subplots()
        colours = LinearSegmentedColormap.from_list("heat", [PAPER, _HOT])
        axes.imshow([[cell.heat for cell in line] for line in self.cells], cmap=colours, vmin=0, vmax=1, aspect="auto")
        for y, line in enumerate(self.cells):
            for x, cell in enumerate(line):
                colour = PAPER if cell.heat > _WHITE_ABOVE else INK
                axes.text(x, y, self._text(cell), ha="center", va="center", color=colour, fontsize=8.5)
        means = [number(value, self.digits) for value in self.means]
        names = [
            f"{rank}. {show(name, 24)}\n{value}"
            for rank, name, value in zip(self.ranks, self.columns, means, strict=True)
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
        figure.supxlabel(self._footnote, fontsize=7, color=MUTED, ha="center")


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
            what = _heat_map(study, attacked, lambda run, lost=lost: lost[run.key], lost=True)  # type: ignore[misc]
            note = (
                f"{'Points' if metric.share else 'How much'} of {metric.name} that each cell loses to its attack, against the "
                "same without attack; mean over seeds."
            )
            title = f"{metric.name.capitalize()} lost against no attack{where}"
            above = _calm_row(study, attacked, what[1])
            found.append(_made(study, "heatmap-lost" + suffix, (title, note), what, above))
        what = _heat_map(study, runs, lambda run: _scaled(metric.final(run), metric.factor), lost=False)
        title = f"Final {metric.name}{metric.in_title}{where}"
        note = f"{metric.name.capitalize()} at the last evaluation, mean over seeds."
        found.append(_made(study, "heatmap-final" + suffix, (title, note), what, None))
    return found


def reading_help(study: Study) -> str:
    """How to read the maps, once for all of them."""
    return (
        "Columns stand from the best mean to the worst, over the rows that all of them have, and are numbered so; rows from the "
        "worst to the best. An axis of numbers keeps its own order. A cell without a number counts as the worst there "
        f"is.{legend(study)}"
    )


_Map = tuple[list[Label], list[Label], dict[tuple[Label, ...], HeatCell], list[float | None], float]


def _heat_map(study: Study, runs: Sequence[Run], value: Callable[[Run], float | None], *, lost: bool) -> _Map:
    """Rows and columns in order, cells, and the columns' means."""
    assert study.compare is not None
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
    if study.compare[1] not in study.numeric_axes:
        columns.sort(key=lambda column: sign * (means[column] or 0.0))
    if study.compare[0] not in study.numeric_axes:
        rows.sort(key=lambda row: -sign * (middle([(row, column) for column in columns]) or 0.0))
    made = {key: HeatCell(number, heat(number), signs) for key, (number, signs) in cells.items()}
    return rows, columns, made, [means[column] for column in columns], sign


def _made(
    study: Study, name: str, words: tuple[str, str], found: _Map, above: tuple[float | None, ...] | None
) -> HeatMap:
    assert study.compare is not None
    rows, columns, cells, means, sign = found
    nothing = HeatCell(None, 0.0, "")
    order = sorted(range(len(columns)), key=lambda at: sign * (means[at] or 0.0))
    return HeatMap(
        name=name,
        title=words[0],
        note=words[1],
        help=reading_help(study),
        corner=" × ".join(map(show, study.compare)),
        rows=tuple(_NO_ATTACK if row == "none" else show(row) for row in rows),
        columns=tuple(show(column) for column in columns),
        ranks=tuple(order.index(at) + 1 for at in range(len(columns))),
        cells=tuple(tuple(cells.get((row, column), nothing) for column in columns) for row in rows),
        means=tuple(means),
        above=(f"{_NO_ATTACK}, final", above) if above else None,
        digits=study.metric.digits,
    )


def _calm_row(study: Study, attacked: Sequence[Run], columns: Sequence[Label]) -> tuple[float | None, ...]:
    """What every column reaches without attack."""
    assert study.compare is not None
    finals = []
    for value in columns:
        own = [study.without_attack(run) for run in attacked if run.labels[study.compare[1]] == value]
        calm = {run.key: run for run in own if run is not None}
        finals.append(_scaled(mean(map(study.metric.final, calm.values())), study.metric.factor))
    return tuple(finals)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _wrapped(text: str, width: int) -> str:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)
