"""Curves over steps with bands over seeds, and lines over a numeric axis."""

from collections.abc import Sequence
from dataclasses import dataclass

from troth.lab.report.figures import ALARM, INK, PAPER, Axes, Panel, Picture, Style, dress, picture, styles
from troth.lab.report.metric import Metric
from troth.lab.report.numbers import mean
from troth.lab.report.records import Label, Run, file_names, show
from troth.lab.report.study import TROTH, Study
from troth.lab.report.tables import number

_MOST_TICKS = 8
_MOST_PANELS = 48  # of one sweep; a page that shows more is read by nobody
_CALM = Style(INK, (1.5, 1.5), 0.9)  # Troth without attack, where it is attacked: what it should come back to


@dataclass(frozen=True)
class Band:
    """One line: mean, least and most over seeds at every place that has a number."""

    value: Label
    style: Style
    points: tuple[tuple[float, float, float, float], ...]  # (x, mean, least, most)
    bans: tuple[int, ...] = ()
    diverged: tuple[int, ...] = ()

    def draw(self, axes: Axes, *, markers: bool = False) -> None:
        if not self.points:
            return
        xs, middle, low, high = zip(*self.points, strict=True)
        front = 3 if self.style.width > 2 else 4  # a thick line is seen below a thin one
        axes.plot(xs, middle, marker="o" if markers else None, markersize=3.5, zorder=front, **self.style.options)
        axes.fill_between(xs, low, high, color=self.style.colour, alpha=0.16, linewidth=0, zorder=2)
        if self.bans:
            from matplotlib.transforms import ScaledTranslation

            above = axes.transData + ScaledTranslation(0, 5 / 72, axes.figure.dpi_scale_trans)
            heights = [self._height(step) for step in self.bans]
            axes.plot(
                self.bans, heights, "v", color=self.style.colour, markersize=3.6, mew=0, zorder=5, transform=above
            )
        if self.diverged:
            heights = [self._height(step) for step in self.diverged]
            axes.plot(self.diverged, heights, "X", color=self.style.colour, markersize=7, mec=PAPER, mew=0.5, zorder=5)

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
        if taken and (panels := [_curve_panel(study, key, some, looks) for key, some in taken]):
            where, suffix = (f": {words}", f"-{name}") if rest else ("", "")
            caption = (
                ""
                if pictures
                # once is enough
                else (
                    "Mean over seeds; the band reaches from the least to the most of them. Dashed upright: the attack begins; "
                    "shaded: it lasts. ▼ a liar is banned or removed (every seed's, above the mean line). ✖ a run diverged: "
                    "from there on it counts with its last value."
                )
            )
            title = f"{study.metric.name.capitalize()} over steps{where}"
            present = [value for value in looks if study.line_axis is None or _has(runs, study.line_axis, value)]
            lines = [(_named(study.line_axis, value), looks[value]) for value in present]
            lines += [("Troth without attack", _CALM)] if _calm_beside(study, runs) else []
            pictures.append(picture(f"curves{suffix}", title, caption, panels, lines, show(study.line_axis or "lines")))
    return pictures, left_out


def _has(runs: Sequence[Run], axis: str, value: Label) -> bool:
    return any(run.labels[axis] == value for run in runs)


def _named(axis: str | None, value: Label) -> str:
    """A value as a panel's title or a line's name: with its axis, unless it speaks for itself."""
    if axis == "attack" and value == "none":
        return "no attack"
    return show(value, 44) if axis in (None, "attack", "defence", "task") else f"{show(axis, 20)} {show(value, 40)}"


def _curve_panel(study: Study, key: tuple[Label, ...], runs: Sequence[Run], looks: dict[Label, Style]) -> Panel:
    metric = study.metric
    lines = study.cells([study.line_axis], runs).items() if study.line_axis else [(("all runs",), list(runs))]
    bands = [_curve(metric, value, looks[value], some) for (value,), some in lines]
    calm = [_curve(metric, value, _CALM, _calm_beside(study, some)) for (value,), some in lines]
    title = _named(study.panel_axis, key[0]) if key else "all runs"
    ends = "; ".join(
        f"{_named(study.line_axis, b.value)} ends at {_said(metric, b.points[-1][1])}" for b in bands if b.points
    )

    def draw(axes: Axes) -> None:
        _mark_attack(axes, runs)
        for band in (*bands, *calm):
            band.draw(axes)
        axes.set_xlabel("step")
        _scale(axes, metric, [point[1] for band in bands for point in band.points])
        dress(axes, title)

    return Panel(f"{title}: {metric.name} over steps, mean over seeds. {ends}.", draw)


def _calm_beside(study: Study, runs: Sequence[Run]) -> list[Run]:
    """Troth's runs without attack that those of Troth under attack are compared with."""
    attacked = [run for run in runs if run.defence == TROTH and not run.calm]
    return [calm for run in attacked if (calm := study.without_attack(run)) is not None]


def _curve(metric: Metric, value: Label, style: Style, runs: Sequence[Run]) -> Band:
    at: dict[float, list[float]] = {}
    steps = {step for run in runs for step, _ in run.curve if run.outcome.diverged_at is None}
    for run in runs:
        for step, point in run.held(steps):
            if (height := point.get(metric.name)) is not None:
                at.setdefault(step, []).append(height * metric.factor)
    bans = tuple(sorted(step for run in runs for step in run.liars_out))
    diverged = tuple(run.outcome.diverged_at for run in runs if run.outcome.diverged_at is not None)
    return Band(value, style, _points(at), bans, diverged)


def _points(at: dict[float, list[float]]) -> tuple[tuple[float, float, float, float], ...]:
    return tuple((x, mean(some) or 0.0, min(some), max(some)) for x, some in sorted(at.items()))


def _mark_attack(axes: Axes, runs: Sequence[Run]) -> None:
    attacked = [run for run in runs if not run.calm]
    if not attacked:
        return
    starts = {run.attack_start for run in attacked}
    for start in sorted(starts):
        axes.axvline(start, color=ALARM, linestyle=(0, (3, 2)), linewidth=1, zorder=1)
    if len(starts) == 1:
        run = attacked[0]
        stop = run.config.get("attack_stop")
        end = stop if isinstance(stop, int) else run.outcome.steps
        axes.axvspan(run.attack_start, end, color=ALARM, alpha=0.05, linewidth=0, zorder=0)


# Over a numeric axis


def axis_pictures(study: Study) -> list[Picture]:
    """The final metric over every numeric axis, and the steps to the last ban where liars are banned."""
    pictures = []
    for axis in study.numeric_axes:
        pictures.append(_axis_picture(study, axis, bans=False))
        if any(run.liars_out for run in study.runs):
            pictures.append(_axis_picture(study, axis, bans=True))
    return pictures


def _axis_picture(study: Study, axis: str, *, bans: bool) -> Picture:
    others = study.rest(axis)
    line = next((name for name in ("defence", "attack", *others) if name in others), None)
    rest = study.rest(axis, line)
    measured = [run for run in study.runs if not bans or run.liars_out]
    present = [value for value in study.values[line] if _has(measured, line, value)] if line else ["all runs"]
    looks = styles(present)
    panels = []
    for words, _, runs in study.facets(rest)[:_MOST_PANELS]:
        some = [run for run in runs if not bans or run.liars_out]
        if some:
            panels.append(_axis_panel(study, axis, line, some, looks, words, bans=bans))
    what = "Steps to the last ban" if bans else f"Final {study.metric.name}"
    each = "runs in which every liar was out" if bans else "seeds"
    caption = f"Mean over {each}; the band reaches from the least to the most of them."
    over = file_names(study.numeric_axes)[study.numeric_axes.index(axis)]
    name = f"{'bans' if bans else 'final'}-over-{over}"
    return picture(
        name,
        f"{what} over {show(axis)}",
        caption,
        panels,
        [(_named(line, value), look) for value, look in looks.items()],
        show(line or "lines"),
    )


def _axis_panel(
    study: Study, axis: str, line: str | None, runs: list[Run], looks: dict[Label, Style], title: str, *, bans: bool
) -> Panel:
    metric = study.metric
    lines = study.cells([line], runs).items() if line else [(("all runs",), runs)]
    bands = [Band(value, looks[value], _over(metric, axis, some, bans=bans)) for (value,), some in lines]
    xs = [point[0] for band in bands for point in band.points]
    ends = "; ".join(
        f"{_named(line, band.value)} from {number(band.points[0][1], 1)} to {number(band.points[-1][1], 1)}"
        for band in bands
        if band.points
    )

    def draw(axes: Axes) -> None:
        for band in bands:
            band.draw(axes, markers=True)
        axes.set_xlabel(show(axis))
        if xs and min(xs) > 0 and max(xs) / min(xs) > 20:
            axes.set_xscale("log")
        if len(study.values[axis]) <= _MOST_TICKS:
            axes.set_xticks(
                [float(value) for value in study.values[axis]], [show(value) for value in study.values[axis]]
            )
            axes.set_xticks([], minor=True)
        if bans:
            axes.set_ylabel("steps from the attack's start")
            axes.set_ylim(bottom=0)
        else:
            _scale(axes, metric, [point[1] for band in bands for point in band.points])
        dress(axes, title)

    return Panel(f"{title or 'All runs'}, over {show(axis)}: {ends}.", draw)


def _over(
    metric: Metric, axis: str, runs: Sequence[Run], *, bans: bool
) -> tuple[tuple[float, float, float, float], ...]:
    at: dict[float, list[float]] = {}
    for run in runs:
        if bans:
            whole = len(run.liars_out) == len(run.outcome.liars)
            height = float(run.liars_out[-1] - run.attack_start) if whole else None
        else:
            final = metric.final(run)
            height = None if final is None else final * metric.factor
        if height is not None:
            at.setdefault(float(run.labels[axis]), []).append(height)
    return _points(at)


# Both


def _scale(axes: Axes, metric: Metric, heights: Sequence[float]) -> None:
    axes.set_ylabel(f"test {metric.name}{metric.in_title}")
    if metric.share:
        axes.set_ylim(0, 102)
    elif heights and min(heights) > 0 and max(heights) / min(heights) > 20:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter("")


def _said(metric: Metric, value: float) -> str:
    return f"{number(value, metric.digits)}{metric.unit}"
