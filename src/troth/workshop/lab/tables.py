"""Numbers and tables of a report: means over seeds, and rows that are the same as CSV, as Markdown and in the page."""

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from troth.errors import printable


def show(value: object, longest: int = 60) -> str:
    """A label as a reader sees it: one line, bounded, numbers short."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    text = printable(text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def named(labels: Mapping[str, object], axes: Sequence[str]) -> str:
    """`schedule early, tau 0.5`."""
    return ", ".join(f"{show(axis)} {show(labels[axis])}" for axis in axes)


def file_names(texts: Sequence[str]) -> list[str]:
    """A name for each of these texts, of few and harmless characters; equal ones get numbers."""
    names = [re.sub(r"[^A-Za-z0-9.]+", "-", text)[:40].strip("-.") or "x" for text in texts]
    return [name if names.count(name) == 1 else f"{name}-{at}" for at, name in enumerate(names, 1)]


# Means, spreads and intervals over seeds

# 97.5 % quantiles of Student's t by degrees of freedom. Between two entries the smaller one counts: its interval is the wider.
_T_975 = {
    1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706, 6: 2.4469, 7: 2.3646, 8: 2.3060, 9: 2.2622, 10: 2.2281,
    11: 2.2010, 12: 2.1788, 13: 2.1604, 14: 2.1448, 15: 2.1314, 16: 2.1199, 17: 2.1098, 18: 2.1009, 19: 2.0930, 20: 2.0860,
    21: 2.0796, 22: 2.0739, 23: 2.0687, 24: 2.0639, 25: 2.0595, 26: 2.0555, 27: 2.0518, 28: 2.0484, 29: 2.0452, 30: 2.0423,
    40: 2.0211, 60: 2.0003, 120: 1.9799,
}  # fmt: skip


@dataclass(frozen=True)
class MeanAndDeviation:
    """Mean and standard deviation (n − 1) of n numbers; None where there are too few."""

    mean: float | None
    sd: float | None
    n: int

    def scaled(self, factor: float) -> "MeanAndDeviation":
        return MeanAndDeviation(
            None if self.mean is None else self.mean * factor,
            None if self.sd is None else self.sd * abs(factor),
            self.n,
        )


def spread(values: Iterable[float | None]) -> MeanAndDeviation:
    """Of those that are numbers."""
    known = [value for value in values if value is not None]
    if not known:
        return MeanAndDeviation(None, None, 0)
    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return MeanAndDeviation(mean, None, 1)
    return MeanAndDeviation(
        mean, math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1)), len(known)
    )


def mean(values: Iterable[float | None]) -> float | None:
    return spread(values).mean


def t_975(freedom: int) -> float:
    """97.5 % quantile of Student's t, so that mean ± t · standard error is a 95 % interval."""
    return _T_975[max(known for known in _T_975 if known <= freedom)]


@dataclass(frozen=True)
class Interval:
    """The mean of paired differences, with its standard error and its 95 % interval."""

    mean: float
    error: float
    low: float
    high: float
    n: int

    @property
    def holds_zero(self) -> bool:
        return self.low <= 0 <= self.high


def interval(differences: Sequence[float]) -> Interval | None:
    """None for fewer than two: one difference says nothing about its spread."""
    found = spread(differences)
    if found.mean is None or found.sd is None:
        return None
    error = found.sd / math.sqrt(found.n)
    reach = t_975(found.n - 1) * error
    return Interval(found.mean, error, found.mean - reach, found.mean + reach, found.n)


# Tables

Cell = str | int | float | bool | MeanAndDeviation | None
_NOTHING = "–"
_LARGE = 1e9


@dataclass(frozen=True)
class Column:
    """A column; `digits` are those behind the point, None as many as a number needs."""

    title: str
    digits: int | None = None


@dataclass(frozen=True)
class ResultTable:
    """A table with a name (of its files), a title, and a note that says how its numbers were made."""

    name: str
    title: str
    note: str
    columns: tuple[Column, ...]
    rows: Sequence[tuple[Cell, ...]]
    folded: bool = False  # in the page: a figure shows the same

    def files(self) -> dict[str, bytes]:
        return {f"tables/{self.name}.csv": self.csv().encode(), f"tables/{self.name}.md": self.markdown().encode()}

    def csv(self) -> str:
        """Numbers as they are; a mean and its standard deviation are two columns."""
        double = [any(isinstance(cell, MeanAndDeviation) for cell in column) for column in self._columns()]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        pairs = zip(self.columns, double, strict=True)
        writer.writerow(
            _plain(title) for c, two in pairs for title in ([c.title, f"{c.title}, sd"] if two else [c.title])
        )
        for row in self.rows:
            writer.writerow(_plain(half) for cell, two in zip(row, double, strict=True) for half in _halves(cell, two))
        return text.getvalue()

    def markdown(self) -> str:
        lines = [
            [_escaped(column.title) for column in self.columns],
            ["---:" if numeric else "---" for numeric in self.numeric()],
            *(list(map(_escaped, row)) for row in self.cells()),
        ]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def cells(self) -> list[list[str]]:
        """Rows as a reader sees them."""
        return [[written(*pair) for pair in zip(row, self.columns, strict=True)] for row in self.rows]

    def numeric(self) -> list[bool]:
        """Columns that hold numbers."""
        return [all(map(_is_number, column)) and any(c is not None for c in column) for column in self._columns()]

    def _columns(self) -> list[list[Cell]]:
        return [[row[at] for row in self.rows] for at in range(len(self.columns))]


def number(value: float | None, digits: int | None = None) -> str:
    """A number for a reader: a true minus sign, no negative zero."""
    if value is None:
        return _NOTHING
    if isinstance(value, int) and digits is None:
        return f"{value}".replace("-", "−")
    if digits is None:
        text = f"{value:.4g}"
    elif abs(value) < _LARGE:  # 83.75 is shown as one number, whether it was computed so or as 83.74999999999999
        text = str(Decimal(f"{value:.12g}").quantize(Decimal(1).scaleb(-digits)))
    else:
        text = f"{value:.{digits}f}"
    return text.lstrip("-") if not re.search(r"[1-9]", text) else text.replace("-", "−")


def written(cell: Cell, column: Column) -> str:
    match cell:
        case None:
            return _NOTHING
        case bool():
            return "yes" if cell else "no"
        case MeanAndDeviation():
            middle = number(cell.mean, column.digits)
            # Two digits that matter are enough.
            deviation = f"{cell.sd or 0.0:.2g}" if column.digits is None else number(cell.sd, column.digits)
            return middle if cell.sd is None else f"{middle} ± {deviation}"
        case int() | float():
            return number(cell, column.digits)
        case _:
            return show(cell, 200)


def _is_number(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, int | float | MeanAndDeviation) and not isinstance(cell, bool))


def _halves(cell: Cell, two: bool) -> Sequence[Cell]:
    return [cell] if not two else [cell.mean, cell.sd] if isinstance(cell, MeanAndDeviation) else [cell, None]


def _plain(cell: Cell) -> str:
    """A cell of a CSV file. A text that a spreadsheet would take for a formula gets an apostrophe in front."""
    match cell:
        case None:
            return ""
        case bool():
            return "yes" if cell else "no"
        case float():
            return format(cell, ".10g")
        case str():
            text = show(cell, 200)
            return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
        case _:
            return str(cell)


_SPECIAL = re.compile(r"([\\`*_\[\]|~])")


def _escaped(text: str) -> str:
    """Text within a table of Markdown, in which a label can open neither a tag nor a cell."""
    text = _SPECIAL.sub(r"\\\1", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
