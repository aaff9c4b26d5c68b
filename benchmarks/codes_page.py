"""What codes and local steps cost without liars: `make codes-page` writes the table from docs/results/codes.

It stands in docs/results/README.md, between the marks; the prose around it stays.
"""

from collections.abc import Iterable
from pathlib import Path

from benchmarks.marked import fill, table
from troth.workshop.lab.reading import FinishedRun, FinishedSweep, read_results
from troth.workshop.lab.study import Metric, Study, make_metric
from troth.workshop.lab.tables import interval, number, spread

PAGE = Path(__file__).parent.parent / "docs/results/README.md"
FOLDER = PAGE.parent / "codes"
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
            digits = _digits(metric)
            words.append(f"{'+' * (found.mean > 0)}{number(found.mean, digits)} ± {number(found.error, digits)}")
    few = f" ({len(both)} seeds)" if words and len(both) != len(others) else ""
    return ", ".join(words) + few


def _digits(metric: Metric) -> int:
    return 2 if metric.share else 4


def main() -> None:
    fill(PAGE, {"codes": codes_table(read_results(FOLDER))})
    print(f"{PAGE} is written")


if __name__ == "__main__":
    main()
