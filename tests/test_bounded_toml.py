"""TOML from somebody else: whatever it holds, it is read within bounds, or refused with a reason."""

import tomllib
from pathlib import Path

import pytest

from troth.files import MOST_BYTES, MOST_LINE, parse_toml

HOSTILE = {
    "brackets, a line each": (b"a = " + b"[\n" * 5000, "nested too deeply: no sweep is"),
    "brackets": (b"a = " + b"[" * 900 + b"]" * 100, "nested too deeply"),
    "tables in tables": (b"a = " + b"{a=" * 900, "nested too deeply"),
    # Keys of 500 dots below a header of 500 took 4 s for 100 kB, and so minutes for the most that is read.
    "one key of dots": (b"a" + b".a" * 300 + b" = 1", "line 1: a key has more than 16 dots"),
    "a header of dots": (b"b = 1\n[a" + b" . a" * 100 + b"]", "line 2: a key has more than 16 dots"),
    "tables of dots": (b"[[a" + b".a" * 100 + b"]]", "line 1: a key has more than 16 dots"),
    "a long line": (b"a = '" + b"x" * MOST_LINE, "line 1 has more than 4,096 bytes"),
    "too much": (b"#\n" * (MOST_BYTES // 2 + 1), "larger than 1,048,576 bytes"),
    "no text": (b"\xff\xfe\x00name = 1", "not a text in UTF-8"),
    "a number that Python will not read": (b"a = " + b"9" * 1000, ""),
    "half a line": (b"a = ", "not TOML"),
    "bytes of zero": (bytes(1000), "not TOML"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_with_a_reason(name: str) -> None:
    raw, why = HOSTILE[name]
    if not why:
        assert parse_toml(raw, "sweep")
        return
    with pytest.raises(ValueError, match=why) as refused:
        parse_toml(raw, "sweep")
    assert len(str(refused.value)) < 200


def test_files_that_people_write_are_read() -> None:
    text = "a = 'one. two. three. and a path/of.many.dots.a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s.t'\n"
    text += "[data.files]\n'en.wiki.2020.01.02.part.0001.of.0010.tar.gz' = 'x'\n"
    assert parse_toml(text.encode(), "sweep") == tomllib.loads(text)
    recipes = [*Path("src/troth").rglob("*.toml"), *Path("docs").rglob("*.toml")]
    assert recipes
    for path in recipes:
        assert parse_toml(path.read_bytes(), "sweep") == tomllib.loads(path.read_text())
