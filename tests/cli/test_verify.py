"""`troth verify`: what it says, and its exit codes."""

import json
from pathlib import Path

import pytest

from troth.cli import main

RUN = [
    "simulate",
    "--task",
    "quadratic:dimension=60",
    "--peers",
    "7",
    "--byzantine",
    "2",
    "--attack-start",
    "3",
    "--steps",
    "30",
]


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    assert call(*RUN, "--seed", "1", "--out", str(folder)) == 0
    return folder


def test_every_ban_of_a_run_verifies_and_is_recomputed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert len(summary["banned"]) == 2
    assert summary["honest_banned"] == 0
    assert summary["agreement"] is True
    for ban in summary["banned"]:
        assert call("verify", str(run / "evidence" / ban["evidence"])) == 0
        said = capsys.readouterr().out
        assert said.startswith("Proved. Peer ")
        assert "indeed not the one that follows from its seed" in said


def test_without_the_state_signatures_and_votes_are_checked(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = next((run / "evidence").glob("*.json"))
    alone = tmp_path / evidence.name
    alone.write_text(evidence.read_text())
    assert call("verify", str(alone)) == 0
    assert "Not recomputed" in capsys.readouterr().out
    assert call("verify", "--no-recompute", str(alone)) == 0


def test_a_damaged_file_is_not_proof(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evidence = next((run / "evidence").glob("*.json"))
    damaged = tmp_path / "damaged.json"
    text = evidence.read_text()
    damaged.write_text(text.replace('"banned": "', '"banned": "0', 1))
    assert call("verify", str(damaged)) == 1
    assert capsys.readouterr().err.startswith("Not proved: ")
    damaged.write_bytes(b"\xff\xfe")
    assert call("verify", str(damaged)) == 1


def test_a_wrong_state_is_not_proof(run: Path, tmp_path: Path) -> None:
    evidence = next((run / "evidence").glob("*.json"))
    (tmp_path / evidence.name).write_text(evidence.read_text())
    for state in (run / "evidence").glob("*.safetensors"):
        raw = bytearray(state.read_bytes())
        raw[-1] ^= 1
        (tmp_path / state.name).write_bytes(bytes(raw))
    assert call("verify", str(tmp_path / evidence.name)) == 1


def test_a_missing_file_is_an_operators_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify", str(tmp_path / "none.json")) == 2
    assert capsys.readouterr().err.startswith("troth: cannot read")


def test_beyond_the_guarantee_is_refused_unless_said_and_then_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beyond = ["simulate", "--task", "quadratic:dimension=64", "--peers", "16", "--byzantine", "8", "--steps", "3"]
    beyond += ["--attack-start", "1", "--out", str(tmp_path / "out")]
    assert call(*beyond) == 2
    assert "--beyond-guarantee" in capsys.readouterr().err
    assert call(*beyond, "--beyond-guarantee") == 0
    said = capsys.readouterr()
    assert "none: this run was asked to go beyond it" in said.out
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["beyond_guarantee"] is True


def test_help_without_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    assert capsys.readouterr().out.count("\n") > 10
