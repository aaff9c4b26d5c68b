"""Tables: the same rows as CSV, as Markdown for the docs, and in the page."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from troth.lab.report.markup import Html, element, joined
from troth.lab.report.numbers import Spread
from troth.lab.report.records import show

Cell = str | int | float | bool | Spread | None
_LONG = 24  # rows; a longer table is folded in the page
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

    def files(self) -> dict[str, bytes]:
        return {f"tables/{self.name}.csv": self.csv().encode(), f"tables/{self.name}.md": self.markdown().encode()}

    def csv(self) -> str:
        """Numbers as they are; a mean and its standard deviation are two columns."""
        double = [any(isinstance(row[at], Spread) for row in self.rows) for at in range(len(self.columns))]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        titles = [
            _pair(column.title) if two else [column.title] for column, two in zip(self.columns, double, strict=True)
        ]
        writer.writerow([_plain(title) for some in titles for title in some])
        for row in self.rows:
            cells = [_halves(cell) if two else [cell] for cell, two in zip(row, double, strict=True)]
            writer.writerow([_plain(cell) for some in cells for cell in some])
        return text.getvalue()

    def markdown(self) -> str:
        right = [self._is_numeric(at) for at in range(len(self.columns))]
        lines = [
            [_escaped(column.title) for column in self.columns],
            ["---:" if numeric else "---" for numeric in right],
            *([_escaped(written(cell, column)) for cell, column in self._pairs(row)] for row in self.rows),
        ]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def html(self) -> Html:
        numeric = ["n" if self._is_numeric(at) else None for at in range(len(self.columns))]
        head = [element("th", c.title, class_=kind, scope="col") for c, kind in zip(self.columns, numeric, strict=True)]
        body = [
            element(
                "tr",
                *(
                    element("td", written(cell, column), class_=kind)
                    for (cell, column), kind in zip(self._pairs(row), numeric, strict=True)
                ),
            )
            for row in self.rows
        ]
        table = scrolling(
            element("table", element("thead", element("tr", *head)), element("tbody", *body)), label=self.title
        )
        if len(self.rows) > _LONG:
            table = element("details", element("summary", f"{self.title}: all {len(self.rows)} rows"), table)
        return joined(
            element("h3", self.title), *([element("p", self.note, class_="note")] if self.note else []), table
        )

    def _pairs(self, row: tuple[Cell, ...]) -> list[tuple[Cell, Column]]:
        return list(zip(row, self.columns, strict=True))

    def _is_numeric(self, at: int) -> bool:
        cells = [row[at] for row in self.rows if row[at] is not None]
        return bool(cells) and all(
            isinstance(cell, int | float | Spread) and not isinstance(cell, bool) for cell in cells
        )


def scrolling(table: Html, label: str) -> Html:
    """A wide table scrolls by itself, with the keyboard too; the page does not."""
    return element("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)


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


def _pair(title: str) -> list[str]:
    return [title, f"{title}, sd"]


def _halves(cell: Cell) -> list[Cell]:
    return [cell.mean, cell.sd] if isinstance(cell, Spread) else [cell, None]


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
