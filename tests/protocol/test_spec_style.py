"""A clause of the specification is a short rule, then its reason: else nobody reads it, and mismatches go unseen."""

import re
from pathlib import Path

import pytest

import troth

MOST_WORDS = 80
MOST_REASONS = 2  # sentences
SPEC = (Path(troth.__file__).parent / "protocol/SPEC.md").read_text(encoding="utf-8")
START = re.compile(r"^\*\*([A-Z]\d)\.\*\* ", re.MULTILINE)
WHY = "*Why:* "


def clauses(text: str) -> dict[str, list[str]]:
    """The paragraphs of each clause, up to the next clause or heading."""
    pieces = START.split(text)[1:]
    bodies = [re.split(r"^#", body, maxsplit=1, flags=re.MULTILINE)[0] for body in pieces[1::2]]
    return {name: body.strip().split("\n\n") for name, body in zip(pieces[::2], bodies, strict=True)}


def words(paragraph: str) -> int:
    """Those of a table or list without its marks."""
    unmarked = re.sub(r"^- |^[ |-]+$|\|", " ", paragraph, flags=re.MULTILINE)
    return len(unmarked.split())


def sentences(paragraph: str) -> int:
    prose = re.sub(r"`[^`]*`", "formula", paragraph)
    return len(re.findall(r"[.!?](?=\s|$)", prose))


def faults(paragraphs: list[str]) -> list[str]:
    """Sentences for people, one for each fault of a clause."""
    *rule, why = paragraphs
    found = [f"{words(part)} words: {part[:60]}…" for part in rule if words(part) > MOST_WORDS]
    if not why.startswith(WHY) or any(part.startswith(WHY) for part in rule):
        return [*found, "it must end with one reason"]
    if sentences(why) > MOST_REASONS:
        found.append(f"its reason has {sentences(why)} sentences")
    if words(why) > MOST_WORDS:
        found.append(f"its reason has {words(why)} words")
    return found


@pytest.mark.parametrize("clause", clauses(SPEC).items(), ids=lambda clause: clause[0])
def test_a_clause_is_a_short_rule_and_its_reason(clause: tuple[str, list[str]]) -> None:
    name, paragraphs = clause
    assert not faults(paragraphs), f"{name}: {faults(paragraphs)}"


def test_a_long_rule_is_found() -> None:
    short, long = "word " * MOST_WORDS, "word " * (MOST_WORDS + 1)
    assert faults([short.strip(), "*Why:* Else."]) == []
    assert len(faults([long.strip(), "*Why:* Else."])) == 1
    assert len(faults([short.strip(), "- " + long.strip(), "*Why:* Else."])) == 1
    assert words("| a | b |\n| --- | --- |\n| one two | three |") == 5


def test_a_missing_or_rambling_reason_is_found() -> None:
    assert faults(["A rule.", "Another rule."]) == ["it must end with one reason"]
    assert faults(["A rule.", "*Why:* Else `a. b. c. d`. And else."]) == []
    assert faults(["A rule.", "*Why:* Else. And else. And more."]) == ["its reason has 3 sentences"]


def test_a_heading_ends_a_clause() -> None:
    assert clauses("**X1.** A rule.\n\n*Why:* Else.\n\n## Next\n\nprose\n") == {"X1": ["A rule.", "*Why:* Else."]}
