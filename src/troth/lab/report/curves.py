"""Curves over steps with bands over seeds, and lines over a numeric axis."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from troth.lab.report.figures import ALARM, INK, PAPER, Axes, Panel, Picture, Style, panels_in_rows, styles
from troth.lab.report.metric import Metric
from troth.lab.report.numbers import mean
from troth.lab.report.records import Label, Run, file_names, show
from troth.lab.report.study import TROTH, Study

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


def _legend(axis: str | None, looks: dict[Label, Style], runs: Sequence[Run]) -> list[tuple[str, Style]]:
    """Lines that occur."""
    there = {run.labels[axis] for run in runs} if axis else set(looks)
    return [(_named(axis, value), look) for value, look in looks.items() if value in there]


def _named(axis: str | None, value: Label) -> str:
    """A value as a panel's title or a line's name: with its axis, unless it speaks for itself."""
    if axis == "attack" and value == "none":
        return "no attack"
    return show(value, 44) if axis in (None, "attack", "defence", "task") else f"{show(axis, 20)} {show(value, 40)}"


def _lines(study: Study, axis: str | None, runs: Sequence[Run]) -> list[tuple[Label, list[Run]]]:
    return [(key[0], some) for key, some in study.cells([axis], runs).items()] if axis else [("all runs", list(runs))]


def _curve_panel(study: Study, key: tuple[Label, ...], runs: Sequence[Run], looks: dict[Label, Style]) -> Panel:
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


def _calm_beside(study: Study, runs: Sequence[Run]) -> list[Run]:
    """Troth's runs without attack that those of Troth under attack are compared with."""
    attacked = [run for run in runs if run.defence == TROTH and not run.calm]
    return [calm for run in attacked if (calm := study.without_attack(run)) is not None]


def curve_of(metric: Metric, style: Style, runs: Sequence[Run]) -> Band:
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


def _mark_attack(axes: Axes, runs: Sequence[Run]) -> None:
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
    measures: list[tuple[str, str, Callable[[Run], float | None]]] = [
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
    study: Study, axis: str, runs: list[Run], value: Callable[[Run], float | None], title: str, *, bans: bool
) -> bytes:
    others = study.rest(axis)
    line = next((name for name in ("defence", "attack", *others) if name in others), None)
    looks = styles(study.values[line] if line else ["all runs"])

    def panel(words: str, some: list[Run]) -> Panel:
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
