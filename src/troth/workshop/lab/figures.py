"""Figures: one look for all, the same bytes for the same data."""

import io
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from textwrap import fill
from typing import Any

import numpy as np

from troth.workshop.lab.measures import legend, lost_to, marks
from troth.workshop.lab.reading import FinishedRun, Label
from troth.workshop.lab.study import TROTH, Metric, Study
from troth.workshop.lab.tables import Column, ResultTable, file_names, mean, number, show

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


Draw = Callable[[Axes], None]


def panels_in_rows(panels: Sequence[tuple[str, Draw]], title: str, lines: Sequence[tuple[str, Style]]) -> bytes:
    """All panels, by their titles, with one legend below."""
    columns = min(len(panels), 4 if len(panels) > 9 else 3)
    rows = -(-len(panels) // columns)
    width = max(columns, 1.6) * 3.1 + 0.4
    widest = max((len(name) for name, _ in lines), default=1) * LETTER + 0.6  # with its line
    beside = max(1, min(6, len(lines), int(width / widest)))
    below = 0.35 + 0.2 * -(-len(lines) // beside)

    def draw_all(figure: Any) -> None:
        from matplotlib.lines import Line2D

        places = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
        for at, (place, (name, draw)) in enumerate(zip(places, panels, strict=False)):
            draw(place)
            _dress(place, name)
            lowest = at + columns >= len(panels)
            place.xaxis.set_tick_params(labelbottom=lowest)
            place.set_xlabel(place.get_xlabel() if lowest else "")
            place.set_ylabel(place.get_ylabel() if at % columns == 0 else "")
        for place in places[len(panels) :]:
            place.set_visible(False)
        figure.suptitle(show(title, 90), fontsize=12, color=INK)
        handles = [Line2D([], [], **style.options) for _, style in lines]
        names = [" " + name for name, _ in lines]  # matplotlib leaves out names that begin with "_"
        figure.legend(handles, names, loc="outside lower center", ncols=beside, frameon=False)

    return rendered((width, rows * 2.35 + 0.4 + below), draw_all)


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


# Lines with bands over seeds: over steps, or over an axis of numbers.

_MOST_TICKS = 8
_MOST_PANELS = 48  # of one sweep; a page that shows more is read by nobody
_CALM = Style(INK, (1.5, 1.5), 0.9)  # Troth without attack, where it is attacked: what it should come back to
_BANDS = "Mean over seeds; the band reaches from the least to the most of them."
_MARKS = " Shaded: the attack. ▼ a liar is banned or removed. ✖ a run diverged: it goes on with its last value."


@dataclass(frozen=True)
class Band:
    """One line: mean, least and most over seeds at every place that has a number."""

    style: Style
    points: tuple[tuple[float, float, float, float], ...]  # (x, mean, least, most)
    bans: tuple[int, ...] = ()
    diverged: tuple[int, ...] = ()
    dots: bool = False  # at the points

    def draw(self, axes: Axes) -> None:
        from matplotlib.transforms import ScaledTranslation

        if not self.points:
            return
        xs, middle, low, high = zip(*self.points, strict=True)
        front = 3 if self.style.width > 2 else 4  # a thick line is seen below a thin one
        axes.plot(xs, middle, marker="o" if self.dots else None, markersize=3.5, zorder=front, **self.style.options)
        axes.fill_between(xs, low, high, color=self.style.colour, alpha=0.16, linewidth=0, zorder=2)
        above = axes.transData + ScaledTranslation(0, 5 / 72, axes.figure.dpi_scale_trans)
        mark = {"color": self.style.colour, "zorder": 5, "linestyle": ""}
        axes.plot(self.bans, np.interp(self.bans, xs, middle), "v", markersize=3.6, mew=0, transform=above, **mark)
        axes.plot(self.diverged, np.interp(self.diverged, xs, middle), "X", markersize=7, mec=PAPER, mew=0.5, **mark)


def curve_pictures(study: Study) -> tuple[list[Picture], int]:
    """One picture for each combination of the axes that are neither panels nor lines; and how many panels were left out."""
    metric, line = study.metric, study.line_axis
    pictures: list[Picture] = []
    room, left_out = _MOST_PANELS, 0

    def curves(style: Style, runs: list[FinishedRun]) -> list[Band]:
        return [curve_of(metric, style, runs), curve_of(metric, _CALM, _calm_beside(study, runs))]

    def dress(axes: Axes, runs: list[FinishedRun], bands: list[Band]) -> None:
        _mark_attack(axes, runs)
        axes.set_xlabel("step")
        _scale(axes, metric, bands)

    for where, suffix, runs in study.facets(study.rest(study.panel_axis, line)):
        cells = list(study.cells([study.panel_axis], runs).items()) if study.panel_axis else [(("all runs",), runs)]
        taken, room = cells[:room], max(0, room - len(cells))
        left_out += len(cells) - len(taken)
        if taken:
            panels = [(_named(study.panel_axis, key), some) for (key,), some in taken]
            extra = [("Troth without attack", _CALM)] if _calm_beside(study, runs) else []
            title = f"{metric.name.capitalize()} over steps{where}"
            png = _lines_in_panels(study, line, panels, title, curves, dress, extra)
            pictures.append(Picture(f"curves{suffix}", title, "" if pictures else _BANDS + _MARKS, png))
    return pictures, left_out


def axis_pictures(study: Study) -> list[Picture]:
    """The final metric over every axis of numbers, and the steps to the last ban where liars are banned."""
    pictures = []
    for axis, file in zip(study.numeric_axes, file_names(study.numeric_axes), strict=True):
        title = f"Final {study.metric.name} over {show(axis)}"
        pictures.append(_over_axis(study, axis, f"final-over-{file}", title, bans=False))
        title = f"Steps to the last ban over {show(axis)}"
        pictures.append(_over_axis(study, axis, f"bans-over-{file}", title, bans=True))
    return [picture for picture in pictures if picture is not None]


def _over_axis(study: Study, axis: str, name: str, title: str, *, bans: bool) -> Picture | None:
    others = study.rest(axis)
    line = next((name for name in ("defence", "attack", *others) if name in others), None)

    def value(run: FinishedRun) -> float | None:
        return run.steps_to_last_ban if bans else study.metric.scaled(run)

    def over_axis(style: Style, runs: list[FinishedRun]) -> list[Band]:
        return [Band(style, _points((float(run.labels[axis]), value(run)) for run in runs), dots=True)]

    def dress(axes: Axes, _runs: list[FinishedRun], bands: list[Band]) -> None:
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

    runs = [run for run in study.runs if value(run) is not None]
    if not runs:
        return None
    panels = [(where.removeprefix(": "), some) for where, _, some in study.facets(study.rest(axis, line), runs)]
    return Picture(name, title, _BANDS, _lines_in_panels(study, line, panels[:_MOST_PANELS], title, over_axis, dress))


def _lines_in_panels(
    study: Study,
    line: str | None,
    panels: Sequence[tuple[str, list[FinishedRun]]],
    title: str,
    bands_of: Callable[[Style, list[FinishedRun]], list[Band]],
    dress: Callable[[Axes, list[FinishedRun], list[Band]], None],
    extra: Sequence[tuple[str, Style]] = (),
) -> bytes:
    """In each panel a line for every value of the axis `line`."""
    looks = styles(study.values[line] if line else ["all runs"])

    def drawing(runs: list[FinishedRun]) -> Draw:
        lines = study.cells([line], runs) if line else {("all runs",): runs}
        bands = [band for (value,), some in lines.items() for band in bands_of(looks[value], some)]

        def draw(axes: Axes) -> None:
            for band in bands:
                band.draw(axes)
            dress(axes, runs, bands)

        return draw

    there = {run.labels[line] if line else "all runs" for _, runs in panels for run in runs}
    legend = [(_named(line, value), look) for value, look in looks.items() if value in there]
    return panels_in_rows([(name, drawing(runs)) for name, runs in panels], title, [*legend, *extra])


def _named(axis: str | None, value: Label) -> str:
    """A value as a panel's title or a line's name: with its axis, unless it speaks for itself."""
    if axis == "attack" and value == "none":
        return _NO_ATTACK
    return show(value, 44) if axis in (None, "attack", "defence", "task") else f"{show(axis, 20)} {show(value, 40)}"


def _calm_beside(study: Study, runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Troth's runs without attack that those of Troth under attack are compared with."""
    attacked = [run for run in runs if run.defence == TROTH and not run.calm]
    return [calm for run in attacked if (calm := study.without_attack(run)) is not None]


def curve_of(metric: Metric, style: Style, runs: Sequence[FinishedRun]) -> Band:
    steps = {step for run in runs for step, _ in run.curve if run.outcome.diverged_at is None}
    heights = ((step, metric.written(point.get(metric.name))) for run in runs for step, point in run.held(steps))
    bans = tuple(sorted(step for run in runs for step in run.liars_out))
    diverged = tuple(run.outcome.diverged_at for run in runs if run.outcome.diverged_at is not None)
    return Band(style, _points(heights), bans, diverged)


def _points(heights: Iterable[tuple[float, float | None]]) -> tuple[tuple[float, float, float, float], ...]:
    at: dict[float, list[float]] = {}
    for x, height in heights:
        if height is not None:
            at.setdefault(x, []).append(height)
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
_MOST = 24  # values of the other axes that get maps
_LEAST_SPAN = 10.0  # points from the palest to the strongest colour: noise looks like noise


@dataclass(frozen=True)
class HeatCell:
    """A mean over seeds, how bad it is from 0 to 1, and its marks. No value: no run, or none with a number."""

    value: float | None = None
    heat: float = 0.0
    marks: str = ""


@dataclass(frozen=True)
class HeatMap:
    """Numbers by row and column, best column first and worst row first; an axis of numbers keeps its order."""

    name: str
    title: str
    note: str
    corner: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[HeatCell, ...], ...]
    means: tuple[float | None, ...]  # of the columns, over the rows that all of them have
    digits: int | None

    def _texts(self, line: Sequence[HeatCell]) -> list[str]:
        return [f"{number(cell.value, self.digits)} {cell.marks}".rstrip() for cell in line]

    def table(self) -> ResultTable:
        # Not "mean", which is a defence.
        rows = [("average", *(number(value, self.digits) for value in self.means))]
        rows += [(name, *self._texts(line)) for name, line in zip(self.rows, self.cells, strict=True)]
        columns = tuple(map(Column, (self.corner, *self.columns)))
        return ResultTable(self.name, self.title, self.note, columns, rows, folded=True)

    def picture(self) -> Picture:
        slant = 0.75 * LETTER * min(28, max(map(len, self.columns)))  # up, and out to the right
        width = max(5.5, 0.5 + LETTER * min(32, max(map(len, self.rows))) + 0.72 * len(self.columns) + slant)
        footnote = fill(self.note, int(width / 0.056))
        height = 1.2 + slant + 0.34 * len(self.rows) + 0.13 * (footnote.count("\n") + 1)
        png = rendered((width, height), lambda figure: self._draw(figure, footnote))
        return Picture(self.name, self.title, "", png)

    def _draw(self, figure: Any, footnote: str) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        axes = figure.subplots()
        colours = LinearSegmentedColormap.from_list("heat", [PAPER, _HOT])
        axes.imshow([[cell.heat for cell in line] for line in self.cells], cmap=colours, vmin=0, vmax=1, aspect="auto")
        for y, line in enumerate(self.cells):
            for x, (cell, text) in enumerate(zip(line, self._texts(line), strict=True)):
                colour = PAPER if cell.heat > _WHITE_ABOVE else INK
                axes.text(x, y, text, ha="center", va="center", color=colour, fontsize=8.5)
        means = (number(value, self.digits) for value in self.means)
        names = [f"{show(name, 24)}\n{average}" for name, average in zip(self.columns, means, strict=True)]
        axes.set_xticks(range(len(names)), names, rotation=40, ha="left", rotation_mode="anchor", color=INK)
        axes.set_yticks(range(len(self.rows)), [show(name, 32) for name in self.rows], color=INK)
        axes.xaxis.tick_top()
        axes.set_xticks([x + 0.5 for x in range(len(names) - 1)], minor=True)
        axes.set_yticks([y + 0.5 for y in range(len(self.rows) - 1)], minor=True)
        axes.tick_params(which="both", length=0)
        axes.spines[:].set_visible(False)
        axes.grid(which="minor", color=LINE, linewidth=0.7)
        figure.suptitle(show(self.title, 90), fontsize=11, color=INK)
        figure.supxlabel(footnote, fontsize=7, color=MUTED, ha="center")


def heat_maps(study: Study) -> list[HeatMap]:
    """What was lost against no attack, where the sweep has such runs, and the final metric; for each value of the other axes."""
    if study.compare is None:
        return []
    metric = study.metric
    found = []
    for where, suffix, runs in study.facets(study.rest(*study.compare))[:_MOST]:
        if len(study.cells(study.compare, runs)) == 1:
            continue  # the tables have that number
        attacked = [run for run in runs if not run.calm and study.without_attack(run) is not None]
        lost = {run.key: lost_to(study, study.without_attack, run) for run in attacked}
        if sum(value is not None for value in lost.values()) * 2 > len(lost):
            title = f"{metric.name.capitalize()} lost against no attack{where}"
            losses = [(run, lost[run.key]) for run in attacked]
            found.append(_heat_map(study, "heatmap-lost" + suffix, title, losses, lost=True))
        title = f"Final {metric.name}{metric.in_title}{where}"
        finals = [(run, metric.scaled(run)) for run in runs]
        found.append(_heat_map(study, "heatmap-final" + suffix, title, finals, lost=False))
    return found


def _heat_map(
    study: Study, name: str, title: str, values: Sequence[tuple[FinishedRun, float | None]], *, lost: bool
) -> HeatMap:
    assert study.compare is not None
    value_of = {run.key: value for run, value in values}
    found = study.cells(study.compare, [run for run, _ in values])
    cells = {key: mean(value_of[run.key] for run in some) for key, some in found.items()}
    sign = 1.0 if lost or not study.metric.higher else -1.0  # of what is bad
    bad = [sign * value for value in cells.values() if value is not None] or [0.0]
    worst, zero = max(bad), 0.0 if lost else min(bad)
    span = max(abs(worst - zero), _LEAST_SPAN if study.metric.share else 1e-12)

    def heat(value: float | None) -> float:
        """From 0 to 1. The square root, so that one point lost can be told from none beside a defence that loses ninety."""
        return 1.0 if value is None else sqrt(min(1.0, max(0.0, sign * value - zero) / span))

    def middle(keys: list[tuple[Label, ...]]) -> float | None:
        """The mean; a cell without a number counts as the worst there is."""
        return mean(sign * worst if (value := cells[key]) is None else value for key in keys if key in cells)

    rows, columns = (list(dict.fromkeys(key[at] for key in cells)) for at in (0, 1))
    shared = [row for row in rows if all((row, column) in cells for column in columns)] or rows
    means = {column: middle([(row, column) for row in shared]) for column in columns}
    down, across = study.compare
    if across not in study.numeric_axes:
        columns.sort(key=lambda column: sign * (means[column] or 0.0))
    if down not in study.numeric_axes:
        rows.sort(key=lambda row: -sign * (middle([(row, column) for column in columns]) or 0.0))
    made = {key: HeatCell(value, heat(value), marks(found[key])) for key, value in cells.items()}
    return HeatMap(
        name=name,
        title=title,
        note=f"Mean over seeds, on top those of the columns. A cell without a number counts as the worst.{legend(study)}",
        corner=" × ".join(map(show, study.compare)),
        rows=tuple(_NO_ATTACK if row == "none" else show(row) for row in rows),
        columns=tuple(map(show, columns)),
        cells=tuple(tuple(made.get((row, column), HeatCell()) for column in columns) for row in rows),
        means=tuple(means[column] for column in columns),
        digits=study.metric.digits,
    )
