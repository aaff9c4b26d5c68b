"""The specification and the code point at each other: no clause without code and test, no citation of nothing."""

import re
from pathlib import Path

import troth

SOURCE = Path(troth.__file__).parent
TESTS = Path(__file__).parents[1]
CITATION = re.compile(r"(?:SPEC |\[)((?:[A-Z]\d(?:–[A-Z]?\d)?(?:, )?)+)\]?")
CLAUSES = re.findall(r"^\*\*([A-Z]\d)\.\*\*", (SOURCE / "protocol/SPEC.md").read_text(), flags=re.MULTILINE)


def cited_in(paths: list[Path]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        for citation in CITATION.findall(path.read_text()):
            for item in re.findall(r"[A-Z]\d(?:–[A-Z]?\d)?", citation):
                found |= set(_expand(item))
    return found


def _expand(item: str) -> list[str]:
    first, _, last = item.partition("–")
    if not last:
        return [first]
    return [f"{first[0]}{k}" for k in range(int(first[1]), int(last[-1]) + 1)]


def test_clauses_are_numbered_once() -> None:
    assert len(CLAUSES) == len(set(CLAUSES)) > 20


def test_every_clause_is_cited_by_code_and_every_citation_exists() -> None:
    assert cited_in(list(SOURCE.rglob("*.py"))) == set(CLAUSES)


def test_every_clause_has_a_test_and_every_test_cites_one_that_exists() -> None:
    tests = [path for path in TESTS.rglob("test_*.py") if path.name != "test_clauses.py"]
    assert cited_in(tests) == set(CLAUSES)


def test_ranges_are_expanded() -> None:
    assert _expand("R2–R5") == ["R2", "R3", "R4", "R5"]
    assert _expand("A1–3") == ["A1", "A2", "A3"]
