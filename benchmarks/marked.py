"""Marked parts of a page: what stands between `<!-- NAME -->` and `<!-- end of NAME -->` is written by a benchmark, the rest by people."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def filled(text: str, name: str, part: str) -> str:
    """The text with this part written anew."""
    between = re.compile(f"<!-- {name} -->.*?<!-- end of {name} -->", re.DOTALL)
    text, found = between.subn(lambda _: f"<!-- {name} -->\n\n{part.strip()}\n\n<!-- end of {name} -->", text)
    assert found == 1, f"the marks of '{name}' are not there once"
    return text


def fill(page: Path, parts: Mapping[str, str]) -> None:
    """Write these parts of a page anew."""
    text = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = filled(text, name, part)
    page.write_text(text, encoding="utf-8")


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown. Columns whose title ends with a colon are aligned to the right."""
    line = ["---:" if title.endswith(":") else "---" for title in titles]
    lines = ([title.removesuffix(":") for title in titles], line, *rows)
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)
