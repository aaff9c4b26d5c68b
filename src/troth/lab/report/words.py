"""The summary at the top of a report: a few plain sentences, every number of which is computed from the runs."""

from collections.abc import Iterable, Sequence

from troth.lab.report.measures import lost_to
from troth.lab.report.numbers import interval, mean
from troth.lab.report.records import Label, Run, named, show
from troth.lab.report.study import MEAN, TROTH, Study
from troth.lab.report.tables import number


def setting(study: Study) -> list[str]:
    """Sentences: what was run."""
    return [_size(study), *_scene(study)] if study.runs else ["No run has ended yet."]


def findings(study: Study) -> list[str]:
    """Sentences: what it showed."""
    if not study.runs:
        return []
    return [*_without_attack(study), *_under_attack(study), *_pairs(study), *_bans(study)]


def _size(study: Study) -> str:
    seeds = len({run.seed for run in study.runs})
    axes = [axis for axis in study.axes if len(study.values[axis]) > 1]
    counted = [_count(axis, study.values[axis]) for axis in axes]
    return f"{_runs(len(study.runs))}: {', '.join([*counted, f'{seeds} seed' + 's' * (seeds > 1)])}."


def _count(axis: str, values: Sequence[Label]) -> str:
    if axis == "attack" and "none" in values:
        return f"{len(values) - 1} {'attack' if len(values) == 2 else 'attacks'} and none"
    known = {"attack": "attacks", "defence": "defences", "task": "tasks", "schedule": "schedules"}
    return f"{len(values)} {known.get(axis, f'values of {show(axis)}')}"


def _scene(study: Study) -> list[str]:
    attacked = [run for run in study.runs if not run.calm]
    peers = _shared(run.config.get("peers") for run in study.runs)
    liars = _shared(len(run.outcome.liars) for run in attacked)
    steps = _shared(run.outcome.steps for run in study.runs if run.outcome.diverged_at is None)
    task = _shared(run.config.get("task") for run in study.runs)
    parts = [
        "" if task is None else f"task {show(task)}",
        "" if peers is None else f"{show(peers)} peers" + (f", {liars} of them liars under attack" if liars else ""),
        "" if steps is None else f"{steps} steps",
    ]
    text = "; ".join(part for part in parts if part)
    return [f"{text[0].upper()}{text[1:]}."] if text else []


def _without_attack(study: Study) -> list[str]:
    """Cells of other axes are not averaged here either: nine peers and sixteen have no mean."""
    said = []
    for name in (TROTH, MEAN):
        calm = [run for run in study.runs if run.calm and run.defence == name]
        cells = study.cells(study.rest("attack"), calm).values()
        if finals := [final for runs in cells if (final := _final(study, runs)) is not None]:
            ends = dict.fromkeys(_value(study, end) for end in (min(finals), max(finals)))
            said.append(f"{_name(name)} reaches {' to '.join(ends)}")
    return [f"Without attack {' and '.join(said)} {study.metric.name}."] if said else []


def _under_attack(study: Study) -> list[str]:
    """The worst attack on Troth and on the plain mean, and the best of the other defences."""
    if "attack" not in study.values:
        return []
    losses = _losses(study)
    known = {_called(study, run): run.defence for run in study.runs}
    ours, plain = ([name for name in losses if known[name] == which] for which in (TROTH, MEAN))
    said = []
    for name in (*ours, *plain):
        where, worst = _worst(study, name)
        most = f"at most {_points(study, worst)} ({where})" if worst > 0 else "nothing under any attack"
        said.append(f"{_start(name)} loses {most}, against itself without attack{_ruined(study, name)}.")
    shared = _shared_attacks(losses)
    compared = shared and len(losses) > 2
    average = {name: mean(by[attack] for attack in shared) for name, by in losses.items()} if compared else {}
    if others := {name: lost for name, lost in average.items() if name not in (*ours, *plain) and lost is not None}:
        best = min(others, key=lambda name: others[name])
        beside = "; ".join(f"{_name(name)}: {_points(study, average[name])}" for name in ours)
        attacks = "the attack" if len(shared) == 1 else f"the {len(shared)} attacks"
        most = _points(study, max(losses[best][attack] for attack in shared))
        said.append(
            f"Of the other defences {show(best)} loses least on average: {_points(study, others[best])} over {attacks} "
            f"under which every defence has a number{f' ({beside})' if beside else ''}, at most {most}."
        )
    return said + _best_under_each(study, losses, shared)


def _worst(study: Study, name: str) -> tuple[str, float]:
    """The cell in which a defence loses most. Cells of other axes are not averaged: "at most" is about each of them."""
    rest = [axis for axis in study.rest("attack", "defence") if len(study.values[axis]) > 1]
    attacked = [run for run in study.runs if not run.calm and _called(study, run) == name]
    found = []
    for key, runs in study.cells(["attack", *rest], attacked).items():
        lost = mean(lost_to(study, study.without_attack, run) for run in runs)
        others = f", {named(dict(zip(rest, key[1:], strict=True)), rest)}" if rest else ""
        found += [(f"{show(key[0])}{others}", lost)] if lost is not None else []
    return max(found, key=lambda cell: cell[1])


def _ruined(study: Study, name: str) -> str:
    """Attacks under which a seed diverged."""
    runs = [run for run in study.runs if _called(study, run) == name and run.outcome.diverged_at is not None]
    attacks = dict.fromkeys(show(run.labels["attack"], 40) for run in runs)
    return f"; it diverges under {', '.join(attacks)}" if attacks else ""


def _losses(study: Study) -> dict[str, dict[Label, float]]:
    """By defence and attack: the mean of what was lost. A loss without a number leaves the attack out."""
    found: dict[str, dict[Label, float]] = {}
    axes = ["defence", "attack"] if "defence" in study.values else ["attack"]
    for key, runs in study.cells(axes, [run for run in study.runs if not run.calm]).items():
        lost = mean(lost_to(study, study.without_attack, run) for run in runs)
        if lost is not None:
            found.setdefault(_called(study, runs[0]), {})[key[-1]] = lost
    return found


def _called(study: Study, run: Run) -> str:
    """A defence by its own name, `troth` for `troth, τ = 1`, unless it was run with several labels: then by its label."""
    label = run.labels.get("defence", run.defence)
    labels = {other.labels.get("defence", label) for other in study.runs if other.defence == run.defence}
    return run.defence if len(labels) == 1 else str(label)


def _shared_attacks(losses: dict[str, dict[Label, float]]) -> list[Label]:
    first = next(iter(losses.values()), {})
    return [attack for attack in first if all(attack in by for by in losses.values())]


def _best_under_each(study: Study, losses: dict[str, dict[Label, float]], shared: Sequence[Label]) -> list[str]:
    if TROTH not in losses or len(losses) < 2 or not shared or not study.metric.share:
        return []
    close = [a for a in shared if losses[TROTH][a] <= min(by[a] for by in losses.values()) + 1]
    return [f"{_name(TROTH)} is the best, or within 1 point of it, under {len(close)} of {len(shared)} attacks."]


def _pairs(study: Study) -> list[str]:
    pair = study.sweep.paired
    if pair is None or "defence" not in study.values:
        return []
    calm = [run for run in study.runs if run.calm]
    by_seed = [{run.seed: study.metric.final(run) for run in calm if run.labels["defence"] == name} for name in pair]
    both = [(by_seed[0][seed], by_seed[1][seed]) for seed in by_seed[0].keys() & by_seed[1].keys()]
    found = interval([(a - b) * study.metric.factor for a, b in both if a is not None and b is not None])
    if found is None or len(study.cells(study.rest("defence"), calm)) > 1:
        return []  # the table says it for each cell
    inside = "0 is inside: within the seeds' noise" if found.holds_zero else "0 is outside"
    return [
        f"Without attack {_name(pair[0])} and {_name(pair[1])} differ by {_points(study, found.mean, 3)} on average "
        f"over {found.n} seeds, 95\u00a0% interval {number(found.low, 3)} to {number(found.high, 3)} ({inside})."
    ]


def _bans(study: Study) -> list[str]:
    """Of liars who were there to be banned: those who all left are counted apart."""
    met = [run for run in study.runs if not run.calm and run.defence == TROTH]
    attacked = [run for run in met if run.out or not run.outcome.liars <= run.outcome.absent]
    if not any(run.out for run in attacked):
        return []
    share = mean(len(run.liars_out) / len(run.outcome.liars) for run in attacked) or 0.0
    whole = [run for run in attacked if len(run.liars_out) == len(run.outcome.liars)]
    last = mean(run.liars_out[-1] - run.attack_start for run in whole)
    after = f", the last of them {number(last, 0)} steps after the attack's start on average" if whole else ""
    honest = sum(run.honest_out for run in attacked)
    hurt = "no honest peer" if not honest else f"{honest} honest peers over all runs"
    left = len(met) - len(attacked)
    gone = [f"In {_runs(left)} all liars left unbanned."] if left else []
    return [f"{_name(TROTH)} bans {number(100 * share, 0)}\u00a0% of the liars{after}, and {hurt}.", *gone]


def trouble(study: Study) -> list[str]:
    """Sentences: what a reader must know before believing the others."""
    outside = sorted({run.defence for run in study.runs if run.outcome.assumed_byzantine is not None and not run.calm})
    diverged = sum(run.outcome.diverged_at is not None for run in study.runs)
    empty = sum(study.metric.final(run) is None for run in study.runs)
    failed = len(study.sweep.failed)
    stalled = sum(run.outcome.stalled for run in study.runs)
    apart = sum(not run.outcome.agreement for run in study.runs)
    evenly = sum(run.outcome.unused_shards for run in study.runs)
    said = [
        f"{_runs(evenly)} of {_name(TROTH)} did not use the task's shards (○): do not rank it beside those that did."
        if evenly
        else "",
        f"Outside their guarantee (†): {', '.join(show(name, 40) for name in outside)}." if outside else "",
        f"{_runs(diverged)} diverged (✕)." if diverged else "",
        f"{_runs(empty)} ended without a number for the {study.metric.name}." if empty else "",
        f"{_runs(failed)} failed and {'is' if failed == 1 else 'are'} listed at the end." if failed else "",
        f"{_runs(stalled)} stalled: too few were left to go on." if stalled else "",
        f"In {_runs(apart)} honest peers did not agree: that must not be." if apart else "",
        _unfinished(study),
    ]
    return [sentence for sentence in said if sentence]


def _unfinished(study: Study) -> str:
    """Also where a sweep was stopped in good order."""
    sweep = study.sweep
    missing = f"{sweep.missing} of {sweep.planned} cells have no result" if sweep.missing else ""
    if sweep.unfinished:
        why = ", ".join(part for part in (missing, "its last line is cut off" if sweep.torn else "") if part)
        return f"The sweep is unfinished: {why}. 'troth lab run' goes on with it."
    return f"{missing}: impossible, or not run yet." if missing else ""


def _runs(count: int) -> str:
    return f"{count} run" if count == 1 else f"{count} runs"


def _final(study: Study, runs: Iterable[Run]) -> float | None:
    return mean(study.metric.final(run) for run in runs)


def _value(study: Study, value: float) -> str:
    return f"{number(value * study.metric.factor, study.metric.digits)}{study.metric.unit}"


def _points(study: Study, value: float | None, digits: int | None = None) -> str:
    return f"{number(value, digits or study.metric.digits)}{study.metric.points or ' of ' + study.metric.name}"


def _name(defence: str) -> str:
    return {TROTH: "Troth", MEAN: "the plain mean"}.get(defence, show(defence))


def _start(defence: str) -> str:
    """The name at the start of a sentence."""
    name = _name(defence)
    return f"{name[0].upper()}{name[1:]}"


def _shared(values: Iterable[object]) -> object | None:
    """The value that all have."""
    found = {repr(value): value for value in values}
    return next(iter(found.values())) if len(found) == 1 else None
