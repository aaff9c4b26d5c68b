"""The tables of a report: each a function of the study, with a note that says how its numbers were made."""

from collections.abc import Callable, Iterable, Sequence

from troth.workshop.lab.reading import ExpectedResult, FinishedRun, Label
from troth.workshop.lab.study import Metric, Study, make_metric, shared_metrics
from troth.workshop.lab.tables import Cell, Column, ResultTable, interval, mean, named, show, spread

OUTSIDE, DIVERGED, HONEST, EVENLY = "†", "✕", "!", "○"
_MEANING = {
    OUTSIDE: "more liars than the defence's guarantee covers: it ran with the most that it is defined for.",
    DIVERGED: "at least one seed diverged.",
    HONEST: "an honest peer was banned.",
    EVENLY: "its peers drew from all data, and the others' from shards of their own: an easier problem.",
}
CLOSE = 3.0  # points between a published figure and ours that count as a reproduction


def marks(runs: Sequence[FinishedRun]) -> str:
    """The signs of a cell; the legend explains them."""
    outside = any(run.outcome.assumed_byzantine is not None and not run.calm for run in runs)
    diverged = any(run.outcome.diverged_at is not None for run in runs)
    honest, evenly = any(run.honest_out for run in runs), any(run.outcome.unused_shards for run in runs)
    return OUTSIDE * outside + DIVERGED * diverged + HONEST * honest + EVENLY * evenly


def legend(study: Study) -> str:
    """What the signs mean, of those that occur; with a space in front."""
    found = marks(study.runs)
    return "".join(f" {sign} {meaning}" for sign, meaning in _MEANING.items() if sign in found)


def final_table(study: Study) -> ResultTable:
    names = shared_metrics(study.runs)
    metrics = [study.metric, *(make_metric(name) for name in names if name != study.metric.name)]
    rows = []
    for key, runs in study.cells(study.axes).items():
        values = [spread(map(metric.scaled, runs)) for metric in metrics]
        rows.append((*_shown(key), *values, spread(run.seconds for run in runs), len(runs), marks(runs)))
    return ResultTable(
        "final",
        "Final metrics",
        f"Mean ± standard deviation over n seeds, at the last evaluation. Runs shared the machine.{legend(study)}",
        (
            *_axes(study.axes),
            *(Column(f"{m.name}{m.in_title}", m.digits) for m in metrics),
            Column("seconds", 1),
            Column("n"),
            Column("marks"),
        ),
        rows,
    )


def lost_table(study: Study) -> ResultTable | None:
    metric = study.metric
    rows = []
    for key, runs in study.cells(study.axes, _attacked(study)).items():
        own = spread(lost_to(study, study.without_attack, run) for run in runs)
        plain = spread(lost_to(study, study.plain_mean, run) for run in runs)
        if own.n or plain.n:
            rows.append((*_shown(key), own, plain, len(runs), marks(runs)))
    if not rows:
        return None
    what = f"lost{metric.in_points}"
    return ResultTable(
        "lost",
        f"{metric.name.capitalize()} lost under attack",
        "Difference of the last evaluations, seed by seed, then mean ± standard deviation over seeds; negative is a gain. "
        f"First against the same defence without attack, then against the plain mean without attack.{legend(study)}",
        (
            *_axes(study.axes),
            Column(f"{what} against itself", metric.digits),
            Column(f"{what} against the plain mean", metric.digits),
            Column("n"),
            Column("marks"),
        ),
        rows,
    )


def lost_to(study: Study, reference: Callable[[FinishedRun], FinishedRun | None], run: FinishedRun) -> float | None:
    other = reference(run)
    return None if other is None else study.metric.lost(study.metric.final(run), study.metric.final(other))


def ban_table(study: Study) -> ResultTable | None:
    """Cells in which somebody was banned, or whose defence bans at all."""
    banning = {run.defence for run in study.runs if run.out}
    attacked = [run for run in _attacked(study) if run.defence in banning]
    if not attacked:
        return None
    rows: list[tuple[Cell, ...]] = []
    for key, runs in study.cells(study.axes, attacked).items():
        first = spread(run.liars_out[0] - run.attack_start for run in runs if run.liars_out)
        lasts = [last for run in runs if (last := run.steps_to_last_ban) is not None]
        share = mean(len(run.liars_out) / len(run.outcome.liars) for run in runs)
        honest = sum(run.honest_out for run in runs)
        rows.append((*_shown(key), first, spread(lasts), f"{len(lasts)} of {len(runs)}", 100 * (share or 0.0), honest))
    return ResultTable(
        "bans",
        "Steps to ban",
        "Steps from the start of the attack until the first and until the last liar was out (banned, or removed by the rule), "
        "mean ± standard deviation over seeds. The last one counts only in runs in which every liar was out at the end.",
        (
            *_axes(study.axes),
            Column("steps to the first ban", 1),
            Column("steps to the last ban", 1),
            Column("runs with all liars out"),
            Column("liars out, %", 0),
            Column("honest banned"),
        ),
        rows,
    )


def expected_table(study: Study) -> ResultTable | None:
    """Published figures beside ours."""
    if not study.sweep.expected:
        return None
    rows = [_expected_row(study, entry) for entry in study.sweep.expected]
    several = any(entry.last > 1 for entry in study.sweep.expected)
    return ResultTable(
        "expected",
        "Published figures beside ours",
        f"Within: at most {CLOSE:g} points apart."
        + (" Where a row says so, ours is the mean of a run's last evaluations." if several else ""),
        (
            Column("cell"),
            Column("metric"),
            Column("published", 1),
            Column("ours", 1),
            Column("difference", 1),
            Column(f"within {CLOSE:g}"),
            Column("n"),
            Column("source"),
        ),
        rows,
    )


def _expected_row(study: Study, entry: ExpectedResult) -> tuple[Cell, ...]:
    metric = make_metric(entry.metric)
    runs = [run for run in study.runs if all(run.labels[name] == value for name, value in entry.labels.items())]
    ours = spread(_at_the_end(run, entry) for run in runs).scaled(metric.factor)
    published = entry.value * metric.factor
    apart = None if ours.mean is None else ours.mean - published
    within = abs(apart) <= CLOSE if metric.share and apart is not None else None
    unit = metric.name + (", %" if metric.share else "") + (f", last {entry.last}" if entry.last > 1 else "")
    cell = named(entry.labels, list(entry.labels)) or "all runs"
    return cell, unit, published, ours, apart, within, ours.n, entry.source or None


def _at_the_end(run: FinishedRun, entry: ExpectedResult) -> float | None:
    """The final metric, or the mean of the last evaluations. One without a number leaves the run without."""
    if entry.last == 1:
        return run.metrics.get(entry.metric)
    values = [point.get(entry.metric) for _, point in run.curve[-entry.last :]]
    return None if any(value is None for value in values) else mean(values)


def paired_table(study: Study) -> ResultTable | None:
    """Values of one axis against the last that the sweep names, seed by seed, in every metric that the runs have."""
    if study.sweep.file.paired is None:
        return None
    *names, reference = study.sweep.file.paired
    axis = next((axis for axis, values in study.values.items() if reference in map(str, values)), None)
    if axis is None:
        return None
    axes = study.rest(axis)
    rows: list[tuple[Cell, ...]] = []
    for key, runs in study.cells(axes).items():
        metrics = [make_metric(name) for name in shared_metrics(runs)]
        by_name = {
            name: {run.seed: run for run in runs if str(run.labels[axis]) == name} for name in (*names, reference)
        }
        rows += [
            (*_shown(key), show(name), metric.name + metric.in_points, *found)
            for name in names
            for metric in metrics
            if (found := _paired(metric, by_name[name], by_name[reference])) is not None
        ]
    if not rows:
        return None
    columns = ("mean difference", "standard error", "95 % from", "95 % to", "0 inside", "seeds")
    return ResultTable(
        "paired",
        f"Minus {show(reference)}, seed by seed",
        "Difference of the final metrics, with Student's t-interval over the seeds' differences. "
        "Where 0 is inside, the difference is within the seeds' noise.",
        (*_axes([*axes, axis]), Column("metric"), *map(Column, columns)),
        rows,
    )


def _paired(metric: Metric, runs: dict[int, FinishedRun], others: dict[int, FinishedRun]) -> tuple[Cell, ...] | None:
    """Mean difference of runs by seed, with its error, interval and number."""
    differences = [
        one - other
        for seed in sorted(runs.keys() & others.keys())
        if (one := metric.scaled(runs[seed])) is not None and (other := metric.scaled(others[seed])) is not None
    ]
    found = interval(differences)
    if found is None:
        return (differences[0], None, None, None, None, 1) if differences else None
    return found.mean, found.error, found.low, found.high, found.holds_zero, found.n


def failed_table(study: Study) -> ResultTable | None:
    if not study.sweep.failed:
        return None
    names = list(study.sweep.failed[0].labels)
    rows = [(*(show(run.labels[name]) for name in names), show(run.error, 200)) for run in study.sweep.failed]
    note = "These runs ended in an error and are in no other table."
    return ResultTable("failed", "Failed runs", note, (*_axes(names), Column("error")), rows)


# Small things


def _attacked(study: Study) -> list[FinishedRun]:
    return [run for run in study.runs if not run.calm]


def _axes(axes: Iterable[str]) -> tuple[Column, ...]:
    return tuple(Column(show(axis)) for axis in axes)


def _shown(key: Iterable[Label]) -> tuple[Cell, ...]:
    return tuple(value if isinstance(value, int | float) else show(value) for value in key)
