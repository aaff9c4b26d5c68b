"""Tables: the same rows as CSV, as Markdown for the docs, and in the page."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from troth.lab.report.numbers import Spread
from troth.lab.report.records import show

Cell = str | int | float | bool | Spread | None
_NOTHING = "–"
_LARGE = 1e9


@dataclass(frozen=True)
class Column:
    """A column; `digits` are those behind the point, None as many as a number needs."""

    title: str
    digits: int | None = None


@dataclass(frozen=True)
class Table:
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
        double = [any(isinstance(cell, Spread) for cell in column) for column in self._columns()]
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
        case Spread():
            middle = number(cell.mean, column.digits)
            return middle if cell.sd is None else f"{middle} ± {_deviation(cell.sd, column.digits)}"
        case int():
            return number(cell) if column.digits is None else number(cell, column.digits)
        case float():
            return number(cell, column.digits)
        case _:
            return show(cell, 200)


def _deviation(sd: float, digits: int | None) -> str:
    """Two digits that matter are enough."""
    return f"{sd:.2g}" if digits is None else number(sd, digits)


def _is_number(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, int | float | Spread) and not isinstance(cell, bool))


def _halves(cell: Cell, two: bool) -> Sequence[Cell]:
    return [cell] if not two else [cell.mean, cell.sd] if isinstance(cell, Spread) else [cell, None]


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
