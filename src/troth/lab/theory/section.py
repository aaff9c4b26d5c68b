"""The section of a report that holds a sweep against theory; for sweeps whose file has a [fit] table."""

from collections.abc import Sequence
from dataclasses import dataclass

from troth.lab.report.markup import Html, element, inline_svg
from troth.lab.report.sections import Section
from troth.lab.report.study import Study
from troth.lab.report.tables import Column, Table
from troth.lab.theory.figures import drawing_of_times, drawing_of_variants
from troth.lab.theory.fits import Row, fitted_groups

_NOTE = (
    "Fitted: slope of the logarithm of the mean iterations over that of the letter, least squares, ± one standard error over "
    "seeds. Whole rate: the slope that the whole formula has at these points. Missed: runs that ended above ε."
)


def theory_section(study: Study) -> Section | None:
    """Fitted exponents beside predicted ones, variants beside each other, and their figures."""
    fit = study.sweep.file.get("fit")
    if not isinstance(fit, dict):
        return None
    lines = [
        {"labels": run.labels, "curve": [{"step": float(step), **metrics} for step, metrics in run.curve]}
        for run in study.runs
    ]
    times, variants = fitted_groups(lines, fit)
    blocks: list[Table | _Drawing] = []
    if times:
        blocks += [_table("exponents", "Exponents, fitted and predicted", _NOTE, [one.row() for one in times])]
        blocks += [_Drawing("exponents", "Iterations to accuracy", *drawing_of_times(times))]
    if variants:
        blocks += [
            _table("variants", "Variants", "Mean over seeds ± its standard error.", [one.row() for one in variants])
        ]
        blocks += [_Drawing("variants", "Variants", *drawing_of_variants(variants))]
    return Section("Against theory", "", tuple(blocks)) if blocks else None


def _table(name: str, title: str, note: str, rows: Sequence[Row]) -> Table:
    columns = tuple(Column(column) for column in rows[0])
    return Table(name, title, note, columns, [tuple(row.values()) for row in rows])


@dataclass(frozen=True)
class _Drawing:
    """A figure, as files and in the page."""

    name: str
    title: str
    png: bytes
    svg: bytes

    def files(self) -> dict[str, bytes]:
        return {f"figures/{self.name}.png": self.png, f"figures/{self.name}.svg": self.svg}

    def html(self) -> Html:
        return element("figure", element("h3", self.title), element("div", inline_svg(self.svg, self.title, {})))
