"""`benchmarks.hardware_gpu`: a time limit loses nothing, and a run's h is one that a run takes."""

import json
from math import inf
from pathlib import Path

import pytest

from benchmarks.hardware_gpu import MIXED, MOST_H, QUICK, Bench, Book, _finite


def test_results_of_earlier_parts_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    Book(file).note("doctor", "one", {"h": 0.5, "ways": {"long": 1}})
    Book(file).note("protocol", "two", {"steps": 3})
    assert json.loads(file.read_text()) == {
        "doctor": {"one": {"h": 0.5, "ways": {"long": 1}}},
        "protocol": {"two": {"steps": 3}},
    }
    shown = capsys.readouterr().out
    assert "h 0.5" in shown
    assert "long" not in shown


@pytest.mark.parametrize(
    ("found", "h"), [(0.00123, 0.0013), (0.0012, 0.0012), (0.1999, MOST_H), (5.0, MOST_H), (None, MOST_H)]
)
def test_h_is_rounded_up_and_below_what_a_run_takes(tmp_path: Path, found: float | None, h: float) -> None:
    book = Book(tmp_path / "out.json")
    book.note("doctor", MIXED, {"h": found})
    assert Bench(Path(), None, "cpu", QUICK, book)._h() == h < 0.2


def test_without_h_nothing_is_run(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="measure the part doctor first"):
        Bench(Path(), None, "cpu", QUICK, Book(tmp_path / "out.json")).protocol()


def test_json_has_no_infinity() -> None:
    assert _finite({"a": [1.0, inf], "b": {"c": inf}, "d": "text"}) == {"a": [1.0, None], "b": {"c": None}, "d": "text"}
