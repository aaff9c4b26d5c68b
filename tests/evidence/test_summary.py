"""The summary of a run, and files that are written whole or not at all."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from troth.evidence import RunSummary, slug
from troth.files import write_text
from troth.simulation import Scenario

SUMMARY = RunSummary(
    version="1.2.3",
    peers=4,
    byzantine=[1],
    steps=10,
    attack="sign-flip",
    defence="mean",
    metrics={"accuracy": 0.5, "loss": 1.25},
    curve=[{"step": 0, "accuracy": 0.1, "loss": 2.5}, {"step": 10, "accuracy": 0.5, "loss": 1.25}],
    details={"parameters": 7, "diverged_at": None},
    config={"seed": 3},
)


class TestToJson:
    def test_round_trip(self) -> None:
        text = SUMMARY.to_json()
        assert text.endswith("}\n")
        assert json.loads(text) == {
            "version": "1.2.3",
            "peers": 4,
            "byzantine": [1],
            "steps": 10,
            "attack": "sign-flip",
            "defence": "mean",
            "metrics": {"accuracy": 0.5, "loss": 1.25},
            "curve": [{"step": 0, "accuracy": 0.1, "loss": 2.5}, {"step": 10, "accuracy": 0.5, "loss": 1.25}],
            "parameters": 7,
            "diverged_at": None,
            "config": {"seed": 3},
        }

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_what_is_no_finite_number_becomes_null(self, value: float) -> None:
        ruined = dataclasses.replace(
            SUMMARY, metrics={"loss": value}, curve=[{"step": 1, "loss": value}], details={"deep": [[value]]}
        )
        read = json.loads(ruined.to_json(), parse_constant=_no_constants)
        assert read["metrics"] == {"loss": None}
        assert read["curve"] == [{"step": 1, "loss": None}]
        assert read["deep"] == [[None]]


def _no_constants(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


class TestSlug:
    def config(self, **options: Any) -> dict[str, Any]:
        return Scenario(**{"defence": "centered-clip", **options}).as_dict()

    def test_says_the_main_things(self) -> None:
        name = slug(self.config(byzantine=7, attack="alie", seed=3))
        assert name.startswith("digits-centered-clip-7x-alie-seed3-")
        assert slug(self.config()).startswith("digits-centered-clip-no-attack-seed0-")

    def test_differs_where_the_configuration_differs(self) -> None:
        configs: list[dict[str, Any]] = [{}, {"tau": 2.0}, {"seed": 1}, {"steps": 60}, {"device": "cpu", "warmup": 1}]
        assert len({slug(self.config(**options)) for options in configs}) == len(configs)

    def test_is_the_same_for_the_same_configuration_in_any_order(self) -> None:
        config = self.config(byzantine=1)
        assert slug(config) == slug(dict(reversed(config.items())))

    def test_is_one_plain_folder_name(self) -> None:
        name = slug({**self.config(byzantine=1), "task": "../my tasks/täsk.py:a=1"})
        assert "/" not in name
        assert name.isascii()


class TestWriteText:
    def test_writes_and_replaces(self, tmp_path: Path) -> None:
        path = tmp_path / "summary.json"
        write_text(path, "first, and longer\n")
        write_text(path, "τ\n")
        assert path.read_bytes() == "τ\n".encode()
        assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]

    def test_a_crash_while_writing_keeps_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "summary.json"
        write_text(path, "old")

        def crash(_descriptor: int) -> None:
            raise OSError("disk full")

        monkeypatch.setattr(os, "fsync", crash)
        with pytest.raises(OSError, match="disk full"):
            write_text(path, "new")
        assert path.read_text() == "old"

    def test_a_reader_who_has_the_old_file_open_keeps_reading_it_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "summary.json"
        write_text(path, "old" * 1000)
        with path.open() as reader:
            beginning = reader.read(3)
            write_text(path, "new" * 1000)
            assert beginning + reader.read() == "old" * 1000
        assert path.read_text() == "new" * 1000
