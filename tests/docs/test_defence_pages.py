"""docs/defences: a page for every defence, with the sections that readers look for, and an index of them all."""

import re
from pathlib import Path

import pytest

from troth.workshop.rules.table import RULES

PAGES = Path(__file__).parents[2] / "docs/defences"
NAMES = ["troth", *RULES]


def test_every_defence_has_a_page_and_nothing_else_has() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == {"README", *NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_what_readers_look_for(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {name}: ")
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert sections == ["Formula", "Source", "Tolerance", "Variants", "What breaks it"]


def test_the_index_links_to_all() -> None:
    index = (PAGES / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"[{name}]({name}.md)" not in index] == []
