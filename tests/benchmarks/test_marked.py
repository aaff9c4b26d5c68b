"""Marked parts of pages: what a benchmark writes, and where."""

from pathlib import Path

import pytest

from benchmarks.marked import fill, filled, table

DOCS = Path(__file__).parents[2] / "docs"
MARKS = {
    "attacks/README.md": ("tried", "how long", "radius"),
    "attacks/bend.md": ("measured",),
    "attacks/hide.md": ("measured",),
    "attacks/spike.md": ("measured",),
    "ban-law.md": ("steps",),
    "drop-outs.md": ("runs", "counts"),
    "promises.md": ("runs",),
    "results/README.md": ("ranking",),
    "theory.md": ("exponents", "variants"),
}


def test_what_stands_between_the_marks_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- a -->\nold\n<!-- end of a -->\n\nafter\n")
    fill(page, {"a": table(("x", "y:"), [(1, "\\2")])})
    text = page.read_text()
    assert text == ("before\n\n<!-- a -->\n\n| x | y |\n| --- | ---: |\n| 1 | \\2 |\n\n<!-- end of a -->\n\nafter\n")
    fill(page, {"a": table(("x", "y:"), [(1, "\\2")])})
    assert page.read_text() == text


@pytest.mark.parametrize("text", ["", "<!-- a -->", 2 * "<!-- a --><!-- end of a -->"])
def test_marks_that_are_not_there_once_are_refused(text: str) -> None:
    with pytest.raises(AssertionError, match="marks of 'a'"):
        filled(text, "a", "new")


@pytest.mark.parametrize("page", MARKS)
def test_our_pages_have_the_marks(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    for name in MARKS[page]:
        assert filled(text, name, "new") != text
