"""What codes and local steps cost, without liars and with seven of sixteen: `make codes-page` writes the tables from
docs/results/codes and docs/results/codes-attacked.

They stand in docs/results/README.md and docs/attacks/README.md, between the marks; the prose around them stays.
"""

import csv
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path

from benchmarks.marked import fill, table
from troth.workshop.lab.reading import FinishedRun, FinishedSweep, read_results
from troth.workshop.lab.study import Metric, Study, make_metric
from troth.workshop.lab.tables import Interval, interval, number, spread

PAGE = Path(__file__).parent.parent / "docs/results/README.md"
FOLDER, ATTACKED = PAGE.parent / "codes", PAGE.parent / "codes-attacked"
ATTACKS = PAGE.parent.parent / "attacks/README.md"
_METRICS = (make_metric("accuracy"), make_metric("loss"))


def codes_table(sweep: FinishedSweep) -> str:
    """A row for each way of sending gradients: the reference's metrics, and what others differ from it, seed by seed."""
    assert sweep.file.paired is not None, "the sweep says what is compared with what"
    *ways, reference = map(str, sweep.file.paired)
    tasks = {task: runs for (task,), runs in Study(sweep).cells(["task"]).items()}
    rows = [(reference, *(_values(_of(runs, reference)) for runs in tasks.values()))]
    rows += [(way, *(_differences(_of(runs, way), _of(runs, reference)) for runs in tasks.values())) for way in ways]
    return table(("", *map(str, tasks)), rows)


def _of(runs: Iterable[FinishedRun], way: str) -> dict[int, FinishedRun]:
    return {run.seed: run for run in runs if run.labels["way"] == way}


def _values(runs: dict[int, FinishedRun]) -> str:
    found = [(metric, spread(map(metric.scaled, runs.values()))) for metric in _METRICS]
    words = [f"{number(value.mean, _digits(metric))}{' %' * metric.share}" for metric, value in found if value.n]
    return f"{', '.join(words)} ({len(runs)} seeds)" if words else ""


def _differences(runs: dict[int, FinishedRun], others: dict[int, FinishedRun]) -> str:
    """Mean ± standard error; the number of seeds where it is not the reference's."""
    both = sorted(runs.keys() & others.keys())
    words = []
    for metric in _METRICS:
        pairs = [(metric.scaled(runs[seed]), metric.scaled(others[seed])) for seed in both]
        found = interval([one - other for one, other in pairs if one is not None and other is not None])
        if found is not None:
            words.append(_signed(found, _digits(metric)))
    few = f" ({len(both)} seeds)" if words and len(both) != len(others) else ""
    return ", ".join(words) + few


def _signed(found: Interval, digits: int) -> str:
    """Mean ± standard error of differences."""
    return f"{'+' * (found.mean > 0)}{number(found.mean, digits)} ± {number(found.error, digits)}"


def _digits(metric: Metric) -> int:
    return 2 if metric.share else 4


def resnet_table(lines: Iterable[dict[str, str]]) -> str:
    """Accuracy of float32 after so many gradients of each peer, and what the others differ from it, seed by seed."""
    found: dict[int, dict[tuple[str, str], dict[str, float]]] = {}
    for line in lines:
        ways = found.setdefault(int(line["gradients"]), {})
        ways.setdefault((line["code"], line["local_steps"]), {})[line["seed"]] = 100 * float(line["accuracy"])
    rows = []
    for gradients, ways in found.items():
        plain = ways.pop(("float32", "1"))
        rows.append((gradients, f"{spread(plain.values()).mean:.1f}", *(_points(way, plain) for way in ways.values())))
    return table(("gradients:", "float32:", "int8:", "int8, H = 8:"), sorted(rows))


def _points(way: dict[str, float], plain: dict[str, float]) -> str:
    found = interval([way[seed] - plain[seed] for seed in plain])
    assert found is not None, "several seeds"
    return _signed(found, 2)


def attacked_table(sweep: FinishedSweep) -> str:
    """Who was gone after how many steps, seed by seed, and points against nobody lying."""
    cells = Study(sweep).cells(["attack", "steps"])
    attacks = dict.fromkeys(attack for attack, _ in cells if attack != "none")
    ways = dict.fromkeys(way for _, way in cells)
    rows = [
        (f"`{attack}`", *(cell for way in ways for cell in _against(cells[attack, way], cells["none", way])))
        for attack in attacks
    ]
    titles = [f"{way}: {what}" for way in ways for what in ("banned", "last after", "points")]
    return table(("attack", *titles), rows)


def _against(runs: Iterable[FinishedRun], calm: Iterable[FinishedRun]) -> tuple[str, ...]:
    ordered = sorted(runs, key=attrgetter("seed"))
    assert not any(run.honest_out for run in ordered), "no honest peer goes"
    others, seeds = {run.seed: run for run in calm}, {run.seed: run for run in ordered}
    accuracy = _METRICS[0].scaled
    pairs = [(accuracy(run), accuracy(others[seed])) for seed, run in seeds.items()]
    found = interval([one - other for one, other in pairs if one is not None and other is not None])
    assert found is not None, "several seeds"
    banned = _each(len(run.liars_out) or f"none, {len(run.outcome.absent)} out" for run in ordered)
    after = _each(run.liars_out[-1] - run.attack_start if run.liars_out else "" for run in ordered)
    return banned, after, _signed(found, 1)


def _each(values: Iterable[object]) -> str:
    """A value for each seed, or the one that all share."""
    words = list(map(str, values))
    return words[0] if len(set(words)) == 1 else ", ".join(words)


def main() -> None:
    with (FOLDER / "resnet18.csv").open(encoding="utf-8") as lines:
        fill(PAGE, {"codes": codes_table(read_results(FOLDER)), "resnet": resnet_table(csv.DictReader(lines))})
    fill(ATTACKS, {"codes attacked": attacked_table(read_results(ATTACKED))})
    print(f"{PAGE} and {ATTACKS} are written")


if __name__ == "__main__":
    main()
