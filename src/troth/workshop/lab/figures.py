"""Figures: one look for all, the same bytes for the same data."""

import io
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from textwrap import fill
from typing import Any

from troth.workshop.lab.measures import legend, lost_to, marks
from troth.workshop.lab.study import TROTH, Metric, Study
from troth.workshop.lab.tables import Column, FinishedRun, Label, ResultTable, file_names, mean, number, show

INK, MUTED, LINE, PAPER, ALARM = "#1f2329", "#676d76", "#dcdfe4", "#fffffe", "#b4322a"
# With twelve of them and four dashes, 48 lines differ.
_COLOURS = (
    "#d1495b", "#2f9e60", "#9a5fd0", "#c77d1a", "#12959c", "#c2559d",
    "#7b8f1e", "#5a74d6", "#a8642a", "#e07b9a", "#3f8fbf", "#b0506e",
)  # fmt: skip
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))
_OURS, _PLAIN = "#2f7fd0", "#868b94"
LETTER = 0.075  # inches that one takes, about
Axes = Any  # matplotlib's


@dataclass(frozen=True)
class Style:
    """How a line is drawn."""

    colour: str
    dashes: tuple[float, ...]
    width: float = 1.5

    @property
    def options(self) -> dict[str, Any]:
        dashed = (0, tuple(length / self.width * 1.5 for length in self.dashes)) if self.dashes else "solid"
        return {"color": self.colour, "linestyle": dashed, "linewidth": self.width}


def styles(values: Sequence[Label]) -> dict[Label, Style]:
    """Troth's lines are the thick ones, that of the plain mean is grey."""
    ours = [value for value in values if str(value).partition(",")[0] == "troth"]  # `troth, τ = 10` is Troth too
    fixed: dict[Label, Style] = {value: Style(_OURS, _DASHES[at % len(_DASHES)], 2.6) for at, value in enumerate(ours)}
    fixed["mean"] = Style(_PLAIN, (5, 2), 1.8)
    others = [value for value in values if value not in fixed]
    made = {
        value: Style(_COLOURS[at % len(_COLOURS)], _DASHES[(at + at // len(_COLOURS)) % len(_DASHES)])
        for at, value in enumerate(others)
    }
    return {value: fixed.get(value) or made[value] for value in values}


@dataclass(frozen=True)
class Picture:
    """A figure, its title, and what is to be known for reading it."""

    name: str
    title: str
    caption: str
    png: bytes

    def files(self) -> dict[str, bytes]:
        return {f"figures/{self.name}.png": self.png}


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    draw: Callable[[Axes], None]


def panels_in_rows(panels: Sequence[Panel], title: str, lines: Sequence[tuple[str, Style]]) -> bytes:
    """All panels, with one legend below."""
    columns = min(len(panels), 4 if len(panels) > 9 else 3)
    rows = -(-len(panels) // columns)
    width = max(columns, 1.6) * 3.1 + 0.4
    widest = max((len(name) for name, _ in lines), default=1) * LETTER + 0.6  # with its line
    beside = max(1, min(6, len(lines), int(width / widest)))
    below = 0.35 + 0.2 * -(-len(lines) // beside)

    def draw(figure: Any) -> None:
        from matplotlib.lines import Line2D

        places = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for at, place in enumerate(places.flat):
            place.set_visible(at < len(panels))
            if at < len(panels):
                panels[at].draw(place)
                _dress(place, panels[at].title)
                place.xaxis.set_tick_params(labelbottom=at + columns >= len(panels))
                place.set_xlabel(place.get_xlabel() if at + columns >= len(panels) else "")
                place.set_ylabel(place.get_ylabel() if at % columns == 0 else "")
        figure.suptitle(show(title, 90), fontsize=12, color=INK)
        handles = [Line2D([], [], **style.options) for _, style in lines]
        names = [" " + name for name, _ in lines]  # matplotlib leaves out names that begin with "_"
        figure.legend(handles, names, loc="outside lower center", ncols=beside, frameon=False)

    return rendered((width, rows * 2.35 + 0.4 + below), draw)


def rendered(size: tuple[float, float], draw: Callable[[Any], None]) -> bytes:
    """PNG of a figure that `draw` fills. Nothing of the time or of chance is in it."""
    from matplotlib import rc_context  # a second to import; no window system is touched
    from matplotlib.figure import Figure

    look: Any = {
        "text.parse_math": False,  # a label is text, never a formula
        "font.family": "DejaVu Sans",
        "font.size": 8.5,
        "text.color": INK,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": MUTED,
        "axes.linewidth": 0.7,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "legend.labelcolor": INK,
    }
    with rc_context(look), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a label in a script that the font does not have
        figure = Figure(figsize=size, layout="constrained", facecolor=PAPER)
        draw(figure)
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=130, metadata={"Software": None})
    return image.getvalue()


def _dress(axes: Axes, title: str) -> None:
    axes.set_title(show(title, 44), fontsize=9.5, color=INK, loc="left")
    axes.grid(color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=2.5)


# Curves over steps with bands over seeds, and lines over a numeric axis.


_MOST_TICKS = 8
_MOST_PANELS = 48  # of one sweep; a page that shows more is read by nobody
_CALM = Style(INK, (1.5, 1.5), 0.9)  # Troth without attack, where it is attacked: what it should come back to
_CAPTION = (
    "Mean over seeds; the band reaches from the least to the most of them. Dashed upright: the attack begins; shaded: it lasts. "
    "▼ a liar is banned or removed (every seed's, above the mean line). ✖ a run diverged: from there on it counts with its last "
    "value."
)


@dataclass(frozen=True)
class Band:
    """One line: mean, least and most over seeds at every place that has a number."""

    style: Style
    points: tuple[tuple[float, float, float, float], ...]  # (x, mean, least, most)
    bans: tuple[int, ...] = ()
    diverged: tuple[int, ...] = ()

    def draw(self, axes: Axes, *, markers: bool = False) -> None:
        from matplotlib.transforms import ScaledTranslation

        if not self.points:
            return
        xs, middle, low, high = zip(*self.points, strict=True)
        front = 3 if self.style.width > 2 else 4  # a thick line is seen below a thin one
        axes.plot(xs, middle, marker="o" if markers else None, markersize=3.5, zorder=front, **self.style.options)
        axes.fill_between(xs, low, high, color=self.style.colour, alpha=0.16, linewidth=0, zorder=2)
        above = axes.transData + ScaledTranslation(0, 5 / 72, axes.figure.dpi_scale_trans)
        mark = {"color": self.style.colour, "zorder": 5, "linestyle": ""}
        axes.plot(self.bans, list(map(self._height, self.bans)), "v", markersize=3.6, mew=0, transform=above, **mark)
        axes.plot(self.diverged, list(map(self._height, self.diverged)), "X", markersize=7, mec=PAPER, mew=0.5, **mark)

    def _height(self, step: float) -> float:
        """Of the mean line at a step, between evaluations too."""
        before = max((point for point in self.points if point[0] <= step), default=self.points[0])
        after = min((point for point in self.points if point[0] >= step), default=self.points[-1])
        share = (step - before[0]) / (after[0] - before[0]) if after[0] > before[0] else 0.0
        return before[1] + share * (after[1] - before[1])


# Over steps


def curve_pictures(study: Study) -> tuple[list[Picture], int]:
    """One picture for each combination of the axes that are neither panels nor lines; and how many panels were left out."""
    rest = study.rest(study.panel_axis, study.line_axis)
    looks = styles(study.values[study.line_axis] if study.line_axis else ["all runs"])
    pictures: list[Picture] = []
    room, left_out = _MOST_PANELS, 0
    for words, name, runs in study.facets(rest):
        cells = list(study.cells([study.panel_axis], runs).items()) if study.panel_axis else [((), runs)]
        taken, room = cells[:room], max(0, room - len(cells))
        left_out += len(cells) - len(taken)
        if taken:
            where, suffix = (f": {words}", f"-{name}") if rest else ("", "")
            lines = _legend(study.line_axis, looks, runs)
            lines += [("Troth without attack", _CALM)] if _calm_beside(study, runs) else []
            title = f"{study.metric.name.capitalize()} over steps{where}"
            panels = [_curve_panel(study, key, some, looks) for key, some in taken]
            caption = "" if pictures else _CAPTION  # once is enough
            pictures.append(Picture(f"curves{suffix}", title, caption, panels_in_rows(panels, title, lines)))
    return pictures, left_out


def _legend(axis: str | None, looks: dict[Label, Style], runs: Sequence[FinishedRun]) -> list[tuple[str, Style]]:
    """Lines that occur."""
    there = {run.labels[axis] for run in runs} if axis else set(looks)
    return [(_named(axis, value), look) for value, look in looks.items() if value in there]


def _named(axis: str | None, value: Label) -> str:
    """A value as a panel's title or a line's name: with its axis, unless it speaks for itself."""
    if axis == "attack" and value == "none":
        return "no attack"
    return show(value, 44) if axis in (None, "attack", "defence", "task") else f"{show(axis, 20)} {show(value, 40)}"


def _lines(study: Study, axis: str | None, runs: Sequence[FinishedRun]) -> list[tuple[Label, list[FinishedRun]]]:
    return [(key[0], some) for key, some in study.cells([axis], runs).items()] if axis else [("all runs", list(runs))]


def _curve_panel(study: Study, key: tuple[Label, ...], runs: Sequence[FinishedRun], looks: dict[Label, Style]) -> Panel:
    lines = _lines(study, study.line_axis, runs)
    bands = [curve_of(study.metric, looks[value], some) for value, some in lines]
    bands += [curve_of(study.metric, _CALM, _calm_beside(study, some)) for _, some in lines]

    def draw(axes: Axes) -> None:
        _mark_attack(axes, runs)
        for band in bands:
            band.draw(axes)
        axes.set_xlabel("step")
        _scale(axes, study.metric, bands)

    return Panel(_named(study.panel_axis, key[0]) if key else "all runs", draw)


def _calm_beside(study: Study, runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Troth's runs without attack that those of Troth under attack are compared with."""
    attacked = [run for run in runs if run.defence == TROTH and not run.calm]
    return [calm for run in attacked if (calm := study.without_attack(run)) is not None]


def curve_of(metric: Metric, style: Style, runs: Sequence[FinishedRun]) -> Band:
    steps = {step for run in runs for step, _ in run.curve if run.outcome.diverged_at is None}
    heights = ((step, point.get(metric.name)) for run in runs for step, point in run.held(steps))
    bans = tuple(sorted(step for run in runs for step in run.liars_out))
    diverged = tuple(run.outcome.diverged_at for run in runs if run.outcome.diverged_at is not None)
    return Band(style, _points(heights, metric.factor), bans, diverged)


def _points(
    heights: Iterable[tuple[float, float | None]], factor: float = 1.0
) -> tuple[tuple[float, float, float, float], ...]:
    at: dict[float, list[float]] = {}
    for x, height in heights:
        if height is not None:
            at.setdefault(x, []).append(height * factor)
    return tuple((x, mean(some) or 0.0, min(some), max(some)) for x, some in sorted(at.items()))


def _mark_attack(axes: Axes, runs: Sequence[FinishedRun]) -> None:
    attacked = [run for run in runs if not run.calm]
    starts = sorted({run.attack_start for run in attacked})
    for start in starts:
        axes.axvline(start, color=ALARM, linestyle=(0, (3, 2)), linewidth=1, zorder=1)
    if len(starts) == 1:
        stop = attacked[0].config.get("attack_stop")
        end = stop if isinstance(stop, int) else attacked[0].outcome.steps
        axes.axvspan(starts[0], end, color=ALARM, alpha=0.05, linewidth=0, zorder=0)


# Over a numeric axis


def axis_pictures(study: Study) -> list[Picture]:
    """The final metric over every numeric axis, and the steps to the last ban where liars are banned."""
    measures: list[tuple[str, str, Callable[[FinishedRun], float | None]]] = [
        ("final", f"Final {study.metric.name}", study.metric.scaled),
        ("bans", "Steps to the last ban", lambda run: run.steps_to_last_ban),
    ]
    pictures = []
    for axis, file in zip(study.numeric_axes, file_names(study.numeric_axes), strict=True):
        for name, what, value in measures:
            runs = [run for run in study.runs if value(run) is not None]
            if runs and (name == "final" or any(run.liars_out for run in runs)):
                title = f"{what} over {show(axis)}"
                png = _over_axis(study, axis, runs, value, title, bans=name == "bans")
                caption = "Mean over seeds; the band reaches from the least to the most of them."
                pictures.append(Picture(f"{name}-over-{file}", title, caption, png))
    return pictures


def _over_axis(
    study: Study,
    axis: str,
    runs: list[FinishedRun],
    value: Callable[[FinishedRun], float | None],
    title: str,
    *,
    bans: bool,
) -> bytes:
    others = study.rest(axis)
    line = next((name for name in ("defence", "attack", *others) if name in others), None)
    looks = styles(study.values[line] if line else ["all runs"])

    def panel(words: str, some: list[FinishedRun]) -> Panel:
        bands = [
            Band(looks[which], _points((float(run.labels[axis]), value(run)) for run in mine))
            for which, mine in _lines(study, line, some)
        ]

        def draw(axes: Axes) -> None:
            for band in bands:
                band.draw(axes, markers=True)
            axes.set_xlabel(show(axis))
            places = [float(place) for place in study.values[axis]]
            if min(places) > 0 and max(places) / min(places) > 20:
                axes.set_xscale("log")
            if len(places) <= _MOST_TICKS:
                axes.set_xticks(places, [show(place) for place in study.values[axis]])
                axes.set_xticks([], minor=True)
            if bans:
                axes.set_ylabel("steps from the attack's start")
                axes.set_ylim(bottom=0)
            else:
                _scale(axes, study.metric, bands)

        return Panel(words, draw)

    facets = study.facets(study.rest(axis, line), runs)[:_MOST_PANELS]
    return panels_in_rows([panel(words, some) for words, _, some in facets], title, _legend(line, looks, runs))


def _scale(axes: Axes, metric: Metric, bands: Sequence[Band]) -> None:
    heights = [point[1] for band in bands for point in band.points]
    axes.set_ylabel(f"test {metric.name}{metric.in_title}")
    if metric.share:
        axes.set_ylim(0, 102)
    elif heights and min(heights) > 0 and max(heights) / min(heights) > 20:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter("")


# The heat map: rows against columns, both in the order of their means, every cell a number with its marks.


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

    def table(self) -> ResultTable:
        titles = [f"{rank}. {name}" for rank, name in zip(self.ranks, self.columns, strict=True)]
        rows: list[tuple[str, ...]] = [(_AVERAGE, *(number(value, self.digits) for value in self.means))]
        if self.above:
            rows.append((f"{_NO_ATTACK}, final", *(number(value, self.digits) for value in self.above)))
        rows += [(name, *(c.text(self.digits) for c in line)) for name, line in zip(self.rows, self.cells, strict=True)]
        return ResultTable(
            self.name, self.title, self.note, (Column(self.corner), *map(Column, titles)), rows, folded=True
        )

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
    runs: Sequence[FinishedRun],
    value: Callable[[FinishedRun], float | None],
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


def _calm_row(study: Study, attacked: Sequence[FinishedRun], columns: Sequence[Label]) -> tuple[float | None, ...]:
    """What every column reaches without attack."""
    assert study.compare is not None
    finals = []
    for value in columns:
        own = [study.without_attack(run) for run in attacked if run.labels[study.compare[1]] == value]
        finals.append(mean(map(study.metric.scaled, {run.key: run for run in own if run is not None}.values())))
    return tuple(finals)
