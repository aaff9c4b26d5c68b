"""Ranking of the defences: `make lab-pages` writes it from results/matrix.

It stands in docs/results/README.md, between the marks; the prose around it stays.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.marked import fill, table
from troth.errors import OperatorError
from troth.workshop.lab.files import TIMES
from troth.workshop.lab.measures import legend, lost_to, marks
from troth.workshop.lab.reading import FinishedRun, FinishedSweep, read_results
from troth.workshop.lab.study import Study
from troth.workshop.lab.sweep_file import read_sweep as read_plan
from troth.workshop.lab.tables import Column, MeanAndDeviation, mean, number, spread, written
from troth.workshop.simulation import ALSO

PAGE = Path(__file__).parent.parent / "docs/results/README.md"
NAME = "matrix"
_POINTS = Column("", digits=1)


class PagesError(OperatorError):
    """Results that no page can be made of."""


@dataclass(frozen=True)
class Cell:
    """An attack against a defence, over all seeds."""

    attack: str  # as labelled in the sweep, like the defence
    defence: str
    runs: tuple[FinishedRun, ...]
    accuracy: MeanAndDeviation  # in per cent
    lost: MeanAndDeviation  # points, against the same seed and defence without attack

    @property
    def points(self) -> float:
        assert self.lost.mean is not None, "a matrix has a run without attack for each of its cells"
        return self.lost.mean

    @property
    def calm(self) -> bool:
        return self.runs[0].calm


@dataclass(frozen=True)
class Matrix:
    """The finished sweep and its cells."""

    sweep: FinishedSweep
    cells: tuple[Cell, ...]


# Reading


def read_matrix(folder: Path) -> Matrix:
    """Read the results of a finished sweep; one with runs that are missing or failed is refused."""
    sweep = read_results(folder)
    if sweep.name != NAME:
        raise PagesError(f"{folder} holds the sweep '{sweep.name}', the pages are made from '{NAME}'")
    planned = {_place(cell.labels) for cell in read_plan(folder / "sweep.toml").plan().cells}
    missing = len(planned - {_place(run.labels) for run in sweep.runs})
    if missing or sweep.failed or sweep.torn:
        raise PagesError(
            f"{folder} is unfinished: of {len(planned)} runs {missing} have no result; 'troth lab run {NAME}' makes them"
        )
    if not sweep.machines:
        raise PagesError(f"{folder / TIMES} does not say on which machine the runs were made")
    study = Study(sweep)
    cells = tuple(
        Cell(
            attack=str(attack),
            defence=str(defence),
            runs=tuple(runs),
            accuracy=spread(run.metrics.get("accuracy") for run in runs).scaled(100),
            lost=spread(lost_to(study, study.without_attack, run) for run in runs),
        )
        for (attack, defence), runs in study.cells(["attack", "defence"]).items()
    )
    for cell in cells:
        if not cell.accuracy.n == cell.lost.n == len(cell.runs):
            raise PagesError(f"{cell.attack} against {cell.defence}: a run without accuracy, or without one to compare")
    return Matrix(sweep, cells)


def _place(labels: dict[str, Any]) -> str:
    return json.dumps(labels, sort_keys=True)


def _page(run: FinishedRun, axis: str) -> str | None:
    """The page of what this run has on an axis: its name without options."""
    spec = str(run.config[axis])
    return None if ALSO in spec or (axis == "attack" and run.calm) else spec.partition(":")[0]


# Tables


def ranking_table(matrix: Matrix) -> str:
    """All defences, by what they lose on average."""
    rows = []
    for rank, (lost, cells) in enumerate(_ranked(matrix.cells, "defence"), start=1):
        [calm] = [cell for cell in cells if cell.calm]
        worst = max((cell for cell in cells if not cell.calm), key=lambda cell: cell.points)
        link = _link(calm, "defence", [run for cell in cells for run in cell.runs])
        at_most = f"{number(worst.points, 1)}, {_link(worst, 'attack')}"
        rows.append((str(rank), link, number(lost, 1), at_most, written(calm.accuracy, _POINTS)))
    return table(("", "defence", "points lost, mean of all attacks", "at most", "accuracy without attack, %"), rows)


def _ranked(cells: Iterable[Cell], axis: str) -> list[tuple[float, list[Cell]]]:
    """Cells by their label on an axis, with the mean of the points lost; the least first."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(getattr(cell, axis), []).append(cell)
    lost = {label: mean(cell.points for cell in same if not cell.calm) or 0.0 for label, same in found.items()}
    return [(lost[label], found[label]) for label in sorted(found, key=lambda label: (lost[label], label))]


def _link(cell: Cell, axis: str, marked: Sequence[FinishedRun] = ()) -> str:
    """A label with a link to its page, and behind it the signs of these runs."""
    run = cell.runs[0]
    page, label = _page(run, axis), str(run.labels[axis])
    return f"{f'[{label}](../{axis}s/{page}.md)' if page else label} {marks(marked)}".rstrip()


# The page


def write_page(matrix: Matrix, page: Path) -> None:
    """Write the table between the marks."""
    fill(page, {"ranking": "\n".join((_how(matrix), ranking_table(matrix), _legend(matrix.sweep)))})


def _how(matrix: Matrix) -> str:
    run = next(run for run in matrix.sweep.runs if not run.calm)
    seeds = ", ".join(map(str, sorted({run.seed for run in matrix.sweep.runs})))
    return (
        f"{run.config['peers']} peers learn {run.config['task']}, {len(run.outcome.liars)} of them lie from step "
        f"{run.attack_start} of {run.config['steps']} on. Mean ± standard deviation over seeds {seeds}; points are lost\n"
        f"against the same defence without attack. Made by `troth lab run {NAME}`, then `python -m benchmarks.lab_pages "
        f"results/{NAME}`,\non {'; '.join(matrix.sweep.machines)}.\n"
    )


def _legend(sweep: FinishedSweep) -> str:
    """What the signs mean, and what the sweep calls by a name of its own."""
    named = [
        f" “{value['label']}”: `{', '.join(f'{name} = {json.dumps(v)}' for name, v in value.items() if name != 'label')}`."
        for values in sweep.file.axes.values()
        for value in values
        if isinstance(value, dict)
    ]
    return f"{legend(Study(sweep))}{''.join(named)}".strip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help=f"results of 'troth lab run {NAME}'")
    try:
        write_page(read_matrix(parser.parse_args().folder), PAGE)
    except OperatorError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(f"{PAGE} is written")


if __name__ == "__main__":
    main()
