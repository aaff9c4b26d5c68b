"""What the sweep `matrix` measured, on the pages of attacks and defences: `make lab-pages` writes it from results/matrix.

The prose of a page stays, and so do the figures of `make attack-pages` where an attack has them. The ranking goes into the
index of the defences and, where its marker stands, into docs/results/README.md.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.attack_pages import TRIED, rewrite
from troth.errors import OperatorError
from troth.lab.report.measures import legend, lost_to, marks
from troth.lab.report.numbers import Spread, mean, spread
from troth.lab.report.reading import TIMES, read_sweep
from troth.lab.report.records import Run, Sweep
from troth.lab.report.study import Study
from troth.lab.report.tables import Column, number, written
from troth.lab.sweeps.file import read_sweep as read_plan
from troth.simulation import ALSO

DOCS = Path(__file__).parent.parent / "docs"
NAME = "matrix"
MEASURED, EVERY_DEFENCE = "## Measured", "## Against every defence"
PLACEHOLDER = "<!-- measured: filled by python -m benchmarks.lab_pages -->"
RANKING, RANKING_ENDS = "<!-- ranking -->", "<!-- end of the ranking -->"
_POINTS = Column("", digits=1)


class PagesError(OperatorError):
    """Results that no page can be made of."""


@dataclass(frozen=True)
class Cell:
    """An attack against a defence, over all seeds."""

    attack: str  # as labelled in the sweep, like the defence
    defence: str
    runs: tuple[Run, ...]
    accuracy: Spread  # in per cent
    lost: Spread  # points, against the same seed and defence without attack
    liars_out: float | None  # banned or removed, mean over seeds; None where the defence never does

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

    sweep: Sweep
    cells: tuple[Cell, ...]

    def pages(self, axis: str) -> dict[str, list[str]]:
        """Labels of an axis by the name of their page. Mixed teams have none, nor has the absence of an attack."""
        found: dict[str, list[str]] = {}
        for run in self.sweep.runs:
            name, label = _page(run, axis), str(run.labels[axis])
            if name and label not in found.setdefault(name, []):
                found[name].append(label)
        return found


# Reading


def read_matrix(folder: Path) -> Matrix:
    """Read the results of a finished sweep; one with runs that are missing or failed is refused."""
    sweep = read_sweep(folder)
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
    removing = {run.labels["defence"] for run in sweep.runs if run.liars_out}
    cells = tuple(
        Cell(
            attack=str(attack),
            defence=str(defence),
            runs=tuple(runs),
            accuracy=spread(run.metrics.get("accuracy") for run in runs).scaled(100),
            lost=spread(lost_to(study, study.without_attack, run) for run in runs),
            liars_out=mean(len(run.liars_out) for run in runs) if defence in removing else None,
        )
        for (attack, defence), runs in study.cells(["attack", "defence"]).items()
    )
    for cell in cells:
        if not cell.accuracy.n == cell.lost.n == len(cell.runs):
            raise PagesError(f"{cell.attack} against {cell.defence}: a run without accuracy, or without one to compare")
    return Matrix(sweep, cells)


def _place(labels: dict[str, Any]) -> str:
    return json.dumps(labels, sort_keys=True)


def _page(run: Run, axis: str) -> str | None:
    """The page of what this run has on an axis: its name without options."""
    spec = str(run.config[axis])
    return None if ALSO in spec or (axis == "attack" and run.calm) else spec.partition(":")[0]


# Tables


def attack_table(cells: Iterable[Cell]) -> str:
    """One attack against every defence, the best defence first."""
    found = sorted(cells, key=lambda cell: (cell.points, cell.defence))
    liars = len(found[0].runs[0].outcome.liars)
    return _table(
        ("defence", "accuracy, %", "points lost", f"liars banned or removed, of {liars}"),
        ((_link(cell, "defence"), *_figures(cell), number(cell.liars_out, 1)) for cell in found),
    )


def defence_table(cells: Iterable[Cell]) -> str:
    """One defence under every attack, the worst attack first; the runs without attack above them."""
    found = sorted(cells, key=lambda cell: (not cell.calm, -cell.points, cell.attack))
    return _table(
        ("attack", "accuracy, %", "points lost"),
        ((_link(cell, "attack"), *_figures(cell)) for cell in found),
    )


def ranking_table(matrix: Matrix) -> str:
    """All defences, by what they lose on average."""
    by_defence: dict[str, list[Cell]] = {}
    for cell in matrix.cells:
        by_defence.setdefault(cell.defence, []).append(cell)
    rows = []
    for defence, cells in by_defence.items():
        attacked = [cell for cell in cells if not cell.calm]
        [calm] = [cell for cell in cells if cell.calm]
        lost = mean(cell.points for cell in attacked) or 0.0
        worst = max(attacked, key=lambda cell: cell.points)
        link = _link(calm, "defence", [run for cell in cells for run in cell.runs])
        figures = (number(lost, 1), f"{number(worst.points, 1)}, {_link(worst, 'attack', [])}", _figures(calm)[0])
        rows.append((lost, defence, (link, *figures)))
    return _table(
        ("", "defence", "points lost, mean of all attacks", "at most", "accuracy without attack, %"),
        ((str(rank), *row) for rank, (_, _, row) in enumerate(sorted(rows), start=1)),
    )


def _figures(cell: Cell) -> tuple[str, str]:
    return written(cell.accuracy, _POINTS), "–" if cell.calm else written(cell.lost, _POINTS)


def _link(cell: Cell, axis: str, marked: Sequence[Run] | None = None) -> str:
    """A label with a link to its page, from any page of the docs' folders; behind it the signs of the cell, or of these runs."""
    run = cell.runs[0]
    page, label = _page(run, axis), "no attack" if axis == "attack" and cell.calm else str(run.labels[axis])
    signs = marks(cell.runs if marked is None else marked)
    return (f"[{label}](../{axis}s/{page}.md)" if page else label) + (f" {signs}" if signs else "")


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (titles, ["---"] * len(titles), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# Pages


def write_pages(matrix: Matrix, docs: Path) -> list[Path]:
    """Write all tables into a folder of docs; return the pages that have changed."""
    before = {path: path.read_bytes() for path in docs.glob("*/*.md")}
    for axis, table in (("attack", attack_table), ("defence", defence_table)):
        for page, labels in matrix.pages(axis).items():
            path = docs / f"{axis}s" / f"{page}.md"
            if path.exists():  # a user's own has none
                _write_section(path, _heading(axis, page), _section(matrix, axis, labels, table))
        for path in sorted((docs / f"{axis}s").glob("*.md")):
            _fill_placeholder(path)
    rewrite(docs / "defences/README.md", MEASURED, f"\n{_ranking(matrix)}")
    _write_ranking(docs / "results/README.md", _ranking(matrix))
    return [path for path, content in before.items() if path.read_bytes() != content]


def _heading(axis: str, page: str) -> str:
    """The section of a page that is the lab's: `make attack-pages` has the other one."""
    return EVERY_DEFENCE if axis == "attack" and page in TRIED else MEASURED


def _section(matrix: Matrix, axis: str, labels: Sequence[str], table: Callable[[Iterable[Cell]], str]) -> str:
    parts = [_how(matrix)]
    for label in labels:
        cells = [cell for cell in matrix.cells if label == getattr(cell, axis)]
        parts.append(f"{_options(matrix.sweep, axis, label)}{table(cells)}")
        parts.append(_legend(matrix.sweep, cells))
    return "\n" + "\n".join(part for part in parts if part)


def _how(matrix: Matrix) -> str:
    run = next(run for run in matrix.sweep.runs if not run.calm)
    seeds = ", ".join(map(str, sorted({run.seed for run in matrix.sweep.runs})))
    return (
        f"{run.config['peers']} peers learn {run.config['task']}, {len(run.outcome.liars)} of them lie from step "
        f"{run.attack_start} of {run.config['steps']} on. Mean ± standard deviation over seeds {seeds}; points are lost\n"
        f"against the same defence without attack. Made by `troth lab run {NAME}`, then `python -m benchmarks.lab_pages "
        f"results/{NAME}`,\non {'; '.join(matrix.sweep.machines)}.\n"
    )


def _options(sweep: Sweep, axis: str, label: str) -> str:
    """How the sweep sets what it calls by a name of its own."""
    for value in sweep.file["axes"][axis]:
        if isinstance(value, dict) and value["label"] == label:
            options = [f"{name} = {json.dumps(v, ensure_ascii=False)}" for name, v in value.items() if name != "label"]
            return f"As “{label}”: `{', '.join(options)}`.\n\n"
    return ""


def _legend(sweep: Sweep, cells: Iterable[Cell]) -> str:
    """What the signs mean, and who is in a mixed team; of those that occur."""
    runs = tuple(run for cell in cells for run in cell.runs)
    teams = {str(run.labels["attack"]): run.config["attack"] for run in runs if ALSO in run.config["attack"]}
    mixed = "".join(f" “{label}” is `{spec}`." for label, spec in teams.items())
    text = (legend(Study(replace(sweep, runs=runs))) + mixed).strip()
    return f"{text}\n" if text else ""


def _write_section(path: Path, heading: str, text: str) -> None:
    content = path.read_text(encoding="utf-8")
    if f"{heading}\n" not in content:
        path.write_text(f"{content.rstrip()}\n\n{heading}\n", encoding="utf-8")
    rewrite(path, heading, text)


def _fill_placeholder(path: Path) -> None:
    """What is not in the sweep has no figures, and says so."""
    content = path.read_text(encoding="utf-8")
    path.write_text(content.replace(PLACEHOLDER, f"It is not in the sweep `{NAME}`."), encoding="utf-8")


def _ranking(matrix: Matrix) -> str:
    parts = (_how(matrix), ranking_table(matrix), _legend(matrix.sweep, matrix.cells))
    return "\n".join(part for part in parts if part)


def _write_ranking(path: Path, text: str) -> None:
    """Behind its marker, up to the end of an earlier one."""
    if path.exists() and RANKING in (content := path.read_text(encoding="utf-8")):
        old = re.compile(f"{RANKING}(.*?{RANKING_ENDS})?", re.DOTALL)
        new = f"{RANKING}\n\n{text}\n{RANKING_ENDS}"
        path.write_text(old.sub(lambda _: new, content, count=1), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help=f"results of 'troth lab run {NAME}'")
    try:
        changed = write_pages(read_matrix(parser.parse_args().folder), DOCS)
    except OperatorError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(f"{len(changed)} pages have changed")


if __name__ == "__main__":
    main()
