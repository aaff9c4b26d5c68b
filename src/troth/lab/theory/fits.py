"""Fitted exponents beside predicted ones, and variants beside each other, out of a sweep's result lines.

The sweep's [fit] table names its groups of runs:

- `exponents`: a group varies one letter; a point's label is the letter's value. `at` holds these values, `epsilon` and
  `promised` (the whole rate) a number for each of them;
- `comparisons`: a group's points are variants of one method, compared by what the measure is at the end.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from troth.files import write_bytes
from troth.lab.theory.exponents import Line, fit_exponent
from troth.lab.theory.figures import drawing_of_times, drawing_of_variants
from troth.lab.theory.times import MEASURES, steps_to

Row = dict[str, Any]
EXPONENTS, COMPARISONS = "Exponents, fitted and predicted", "Variants"


@dataclass(frozen=True)
class Times:
    """One group: for each value of its letter, every seed's iterations to ε, and the line through them."""

    spec: Mapping[str, Any]
    values: list[float]
    samples: list[list[float]]
    missed: int  # runs that did not reach ε, counted with all their steps
    line: Line | None
    promised: Line | None  # the same fit through the whole rate at these points

    def row(self) -> Row:
        line = self.line
        return {
            "group": self.spec["name"],
            "method": self.spec["method"],
            "problem": self.spec["task"],
            "term": self.spec["term"],
            "varies": self.spec["varies"],
            "predicted": float(self.spec["exponent"]),
            "whole rate": None if self.promised is None else round(self.promised.exponent, 2),
            "fitted": None if line is None else round(line.exponent, 2),
            "error": None if line is None else round(line.error, 2),
            "iterations": ", ".join(
                f"{value:g}: {np.mean(sample):.0f}" for value, sample in zip(self.values, self.samples, strict=True)
            ),
            "missed": self.missed,
        }


@dataclass(frozen=True)
class Variant:
    """One variant: its measure at the end, of every seed, and the mean curve."""

    group: str
    name: str
    measure: str
    last: list[float]
    curve: list[tuple[float, float]] = field(repr=False)  # step, median over seeds

    def row(self) -> Row:
        finite = [value for value in self.last if np.isfinite(value)]
        return {
            "group": self.group,
            "variant": self.name,
            "measure at the end": self.measure,
            "mean": round(float(np.mean(finite)), 5) if finite else None,
            "error": round(float(np.std(finite, ddof=1)) / sqrt(len(finite)), 5) if len(finite) > 1 else None,
            "worst": round(max(finite), 5) if len(finite) == len(self.last) and finite else None,
            "runs": len(self.last),
        }


@dataclass(frozen=True)
class Fitted:
    """Tables by title, with rows of equal keys; and the figures that were drawn."""

    tables: dict[str, list[Row]]
    figures: list[Path] = field(default_factory=list)

    def text(self) -> str:
        """The tables in Markdown."""
        return "\n\n".join(f"{title}\n\n{markdown(rows)}" for title, rows in self.tables.items() if rows) + "\n"


def fits(lines: Sequence[Mapping[str, Any]], fit: Mapping[str, Any], folder: Path | None = None) -> Fitted:
    """Fit every group that the sweep's [fit] table names; with a folder, draw it there too. Groups without runs are left out."""
    times, variants = fitted_groups(lines, fit)
    tables = {EXPONENTS: [one.row() for one in times], COMPARISONS: [one.row() for one in variants]}
    figures: dict[str, bytes] = {}
    if folder is not None:
        figures |= {"theory-exponents.png": drawing_of_times(times)[0]} if times else {}
        figures |= {"theory-variants.png": drawing_of_variants(variants)[0]} if variants else {}
        folder.mkdir(parents=True, exist_ok=True)
        for name, png in figures.items():
            write_bytes(folder / name, png)
    return Fitted(tables, [folder / name for name in figures] if folder is not None else [])


def fitted_groups(lines: Sequence[Mapping[str, Any]], fit: Mapping[str, Any]) -> tuple[list[Times], list[Variant]]:
    """The groups of both kinds, fitted; runs that failed are left out."""
    kept = [line for line in lines if "error" not in line]
    times = [_times(kept, spec) for spec in fit.get("exponents", ()) if _of(kept, spec["name"])]
    return times, [one for spec in fit.get("comparisons", ()) for one in _variants(kept, spec)]


def _times(lines: Sequence[Mapping[str, Any]], spec: Mapping[str, Any]) -> Times:
    mine = _of(lines, spec["name"])
    there = {float(line["labels"]["point"]) for line in mine}
    points = [point for point in zip(spec["at"], spec["epsilon"], spec["promised"], strict=True) if point[0] in there]
    values, samples, missed = [point[0] for point in points], list[list[float]](), 0
    for value, epsilon, _ in points:
        found = []
        for line in (line for line in mine if float(line["labels"]["point"]) == value):
            steps = steps_to(line["curve"], spec["measure"], epsilon)
            missed += steps is None
            found.append(float(line["curve"][-1]["step"] if steps is None else steps))
        samples.append(found)
    whole = fit_exponent(values, [[promised] for _, _, promised in points])
    return Times(spec, values, samples, missed, fit_exponent(values, samples), whole)


def _variants(lines: Sequence[Mapping[str, Any]], spec: Mapping[str, Any]) -> Iterable[Variant]:
    mine, measure = _of(lines, spec["name"]), spec["measure"]
    for name in dict.fromkeys(str(line["labels"]["point"]) for line in mine):
        curves = [line["curve"] for line in mine if str(line["labels"]["point"]) == name]
        series = [MEASURES[measure](curve) for curve in curves]
        shortest = min(map(len, series))
        median = np.median([one[:shortest] for one in series], axis=0)
        steps = [float(point["step"]) for point in curves[0][:shortest]]
        yield Variant(
            spec["name"], name, measure, [float(one[-1]) for one in series], list(zip(steps, median, strict=True))
        )


def _of(lines: Sequence[Mapping[str, Any]], group: str) -> list[Mapping[str, Any]]:
    return [line for line in lines if line["labels"].get("group") == group]


def markdown(rows: Sequence[Row]) -> str:
    """Rows as a table in Markdown."""
    head = list(rows[0])
    cells = [["" if row[name] is None else f"{row[name]}" for name in head] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *cells])
