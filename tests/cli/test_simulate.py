"""`troth simulate`: what it prints, what it writes, what it refuses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from tests.cli.conftest import Troth
from troth.api.read_events import read_events
from troth.events.kinds import Ended, Stepped
from troth.workshop.simulation import Scenario, Started

SHORT = ("simulate", "--peers", "3", "--steps", "4", "--defence", "centered-clip")
PNG = b"\x89PNG\r\n\x1a\n"
RESULTS = ["curve.csv", "curve.png", "events.jsonl", "model.safetensors", "summary.json"]


class TestResults:
    def test_json_prints_the_summary_and_nothing_else(self, troth: Troth) -> None:
        done = troth(*SHORT, "--byzantine", "1", "--attack-start", "2", "--out", "here", "--json")
        assert done.code == 0
        assert done.out == Path("here/summary.json").read_text(encoding="utf-8")
        summary = json.loads(done.out)
        assert summary["peers"] == 3
        assert summary["byzantine"] == Scenario(peers=3, byzantine=1, attack_start=2, defence="mean").byzantine_peers()
        assert summary["steps"] == 4
        assert 0 <= summary["metrics"]["accuracy"] <= 1
        assert summary["metrics"]["loss"] > 0
        assert [point["step"] for point in summary["curve"]] == [0, 4]
        assert summary["curve"][-1]["accuracy"] == summary["metrics"]["accuracy"]
        assert summary["config"]["attack_start"] == 2
        assert summary["config"]["tau"] == 1.0, "with the task's suggestion filled in"

    def test_without_json_a_table_names_the_files(self, troth: Troth) -> None:
        done = troth(*SHORT, "--out", "here")
        assert done.code == 0
        for words in ("digits (4,810 parameters)", "3, of which lie: none", "centered-clip", "accuracy", "loss"):
            assert words in done.out
        assert str(Path("here/summary.json")) in done.out
        assert str(Path("here/curve.png")) in done.out

    def test_the_table_names_the_liars_and_the_ruin(self, troth: Troth) -> None:
        arguments = ("--byzantine", "1", "--attack-start", "1", "--attack", "sign-flip:scale=1e30", "--defence", "mean")
        done = troth(*SHORT, *arguments, "--optimizer", "sgd", "--rate", "0.3", "--out", "here")
        assert done.code == 1
        liar = Scenario(peers=3, byzantine=1, defence="mean").byzantine_peers()
        assert f"3, of which lie: {liar}" in done.out
        assert "sign-flip:scale=1e30 in 1 steps" in done.out
        assert "at step 2: the model is ruined" in done.out

    def test_a_defence_outside_its_guarantee_is_told(self, troth: Troth) -> None:
        quick = ("simulate", "--task", "quadratic:dimension=20", "--attack-start", "1", "--steps", "3")
        done = troth(*quick, "--byzantine", "7", "--defence", "krum", "--momentum", "0.9", "--out", "one")
        assert "none: krum withstands at most 6 liars among 16, and ran as if there were 6" in done.out
        assert "guarantee" not in troth(*quick, "--byzantine", "6", "--defence", "krum", "--out", "two").out
        done = troth(*quick, "--byzantine", "7", "--defence", "safeguard-single", "--out", "three")
        assert "7 of 7 liars, 0 honest" in done.out

    @pytest.mark.parametrize("task", ["digits", "quadratic:dimension=20"])
    def test_a_picture(self, troth: Troth, task: str) -> None:
        assert troth(*SHORT, "--task", task, "--out", "here").code == 0
        picture = Path("here/curve.png").read_bytes()
        assert picture.startswith(PNG)
        assert len(picture) > 5000

    def test_a_picture_of_a_ruined_run(self, troth: Troth) -> None:
        arguments = ("--task", "quadratic:dimension=20", "--rate", "1e30", "--steps", "20", "--defence", "mean")
        assert troth("simulate", "--peers", "3", *arguments, "--out", "here").code == 1
        assert json.loads(Path("here/summary.json").read_text())["diverged_at"] is not None
        assert Path("here/curve.png").read_bytes().startswith(PNG)

    def test_a_run_of_the_protocol_that_diverges_says_so_at_once_and_in_the_end(self, troth: Troth) -> None:
        arguments = (
            "--task",
            "quadratic:dimension=20",
            "--rate",
            "1e30",
            "--tau",
            "1e30",
            "--steps",
            "20",
            "--out",
            "here",
        )
        done = troth("simulate", "--peers", "4", *arguments)
        at = json.loads(Path("here/summary.json").read_text())["diverged_at"]
        assert (done.code, done.out.count(f"at step {at}: the model is ruined")) == (1, 1)
        assert f"step {at}: gradients of 3 of 3 honest peers are not finite, and count as zero" in done.err
        assert f"diverged at step {at}" in done.err
        *steps, ended = read_events("here")
        assert isinstance(ended, Ended)
        assert (ended.how, f"diverged at step {at}" in ended.text) == ("stopped", True)
        (news,) = [event for event in steps if isinstance(event, Stepped) and event.news]
        assert news.step == at

    def test_without_out_the_folder_is_named_after_the_run(self, troth: Troth) -> None:
        assert troth(*SHORT, "--seed", "5").code == 0
        (folder,) = Path("runs").iterdir()
        assert folder.name.startswith("digits-centered-clip-no-attack-seed5-")
        assert sorted(path.name for path in folder.iterdir()) == RESULTS

    def test_a_task_of_ones_own(self, troth: Troth) -> None:
        Path("lines.py").write_text(LINES, encoding="utf-8")
        done = troth(*SHORT, "--task", "lines.py:slope=2", "--json")
        assert done.code == 0
        summary = json.loads(done.out)
        assert summary["config"]["task"] == "lines.py:slope=2"
        assert summary["parameters"] == 2
        assert "accuracy" not in summary["metrics"]

    def test_a_terminal_gets_a_bar_on_standard_error_and_json_stays_clean(
        self, troth: Troth, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
        done = troth(*SHORT, "--byzantine", "1", "--attack-start", "0", "--json")
        assert json.loads(done.out)["steps"] == 4
        assert "step 4/4" in done.err
        assert "under attack" in done.err


class TestStrangers:
    def test_their_way_is_told_and_summed_up(self, troth: Troth) -> None:
        few = ("--task", "quadratic:dimension=40", "--peers", "5", "--steps", "10", "--probation", "4")
        done = troth("simulate", *few, "--strangers", "honest", "--strangers", "zeros:at=1", "--out", "here")
        assert done.code == 0
        for line in (
            "step 0: peer5 knocks at the door (honest)",
            "step 1: peer5 has a slot: 4 steps on probation",
            "step 4: peer5 is on probation: 2 of 4 steps",
            "step 6: peer5 has worked through its probation, and is a member",
            "peer6 is banned: its gradient of step",
        ):
            assert line in done.err
        assert "strangers   honest: of 1, 1 had a slot, 1 were admitted, 0 banned; members in the end: 1\n" in done.out
        assert (
            "strangers   zeros:at=1: of 1, 1 had a slot, 0 were admitted, 1 banned; members in the end: 0\n" in done.out
        )
        summary = json.loads(Path("here/summary.json").read_text(encoding="utf-8"))
        assert [one["peer"] for one in summary["door"]["strangers"]] == [5, 6]
        assert summary["config"]["strangers"] == "honest + zeros:at=1"
        assert summary["honest_banned"] == 0
        (proof,) = Path("here/evidence").glob("ban-*.json")
        # A stranger signs no record: nothing of its own says at which state its gradient was taken [E6].
        assert troth("verify", str(proof), "--run", "here/evidence/run").code == 3

    def test_a_closed_door_is_named_as_an_option(self, troth: Troth) -> None:
        done = troth("simulate", "--strangers", "honest")
        assert done.code == 2
        assert done.err.startswith("troth: --strangers need an open door: set --probation, the steps that they work")


LINES = """
from dataclasses import dataclass
import torch
import torch.nn.functional as F
from torch import nn
from troth.training import Task

@dataclass(frozen=True)
class Lines(Task):
    '''fit a line'''
    slope: float = 3.0

    def model(self):
        return nn.Linear(1, 1)

    def batch(self, draw):
        x = torch.from_numpy(draw.uniform(8)).float()[:, None]
        return {"x": x, "y": self.slope * x + 1}

    def loss(self, model, batch):
        return F.mse_loss(model(batch["x"]), batch["y"])
"""


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--byzantine", "8"), "--byzantine 8 is too many for 16 peers"),
            (("--momentum", "0.9"), "--momentum is for a trusted server"),
            (("--momentum-average", "--defence", "mean"), "--momentum-average needs --momentum"),
            (("--peers", "4", "--byzantine", "2"), "--byzantine 2 is too many for 4 peers"),
            (("--attack", "sign-flop"), "unknown attack 'sign-flop': did you mean sign-flip"),
            (("--attack", "sign-flip:scale=0"), "'sign-flip:scale=0': scale must be a positive number"),
            (("--defence", "centred-clip"), "unknown defence 'centred-clip': did you mean centered-clip"),
            (("--task", "digit"), "unknown task 'digit': did you mean digits"),
            (("--task", "nowhere.py"), "no task file at 'nowhere.py'"),
            (("--schedule", "cosin"), "unknown schedule 'cosin': did you mean cosine?"),
            (("--optimizer", "adam"), "unknown optimizer 'adam': did you mean adamw or lamb?"),
            (("--tau", "0"), "--tau must be a positive number, got 0"),
            (("--tau", "-1"), "--tau must be a positive number, got -1"),
            (("--tau", "wide"), "Invalid value for '--tau'"),
            (("--steps", "0"), "--steps must be at least 1, got 0"),
            (("--peers", "many"), "Invalid value for '--peers'"),
            (("--device", "tpu"), "--device is cpu or cuda, got 'tpu'"),
            (("--out", "file/below"), "cannot write to --out file/below: Not a directory; choose another folder"),
            (("--out", "file"), "cannot write to --out file: File exists; choose another folder"),
            (("--colour", "red"), "No such option: --colour"),
            (("extra",), "Got unexpected extra argument"),
        ],
        ids=" ".join,
    )
    def test_end_in_one_line_and_exit_code_2(self, troth: Troth, arguments: tuple[str, ...], message: str) -> None:
        Path("file").touch()
        done = troth("simulate", *arguments)
        assert done.code == 2
        assert done.out == ""
        assert done.err.startswith(f"troth: {message}")
        assert done.err.count("\n") == 1
        assert [path.name for path in Path().iterdir()] == ["file"], "nothing was written"


class TestFolders:
    def test_another_runs_results_are_not_overwritten(self, troth: Troth) -> None:
        troth(*SHORT, "--out", "here")
        before = Path("here/summary.json").read_bytes()
        done = troth(*SHORT, "--seed", "1", "--out", "here")
        assert done.code == 2
        assert done.err == "troth: here holds the results of another run: choose another --out, or add --overwrite\n"
        assert Path("here/summary.json").read_bytes() == before

    def test_unless_asked_for(self, troth: Troth) -> None:
        troth(*SHORT, "--out", "here")
        assert troth(*SHORT, "--seed", "1", "--out", "here", "--overwrite").code == 0
        assert json.loads(Path("here/summary.json").read_text())["config"]["seed"] == 1

    def test_a_summary_that_cannot_be_read_counts_as_anothers(self, troth: Troth) -> None:
        Path("here").mkdir()
        Path("here/summary.json").write_text("[1, 2")
        assert "holds the results of another run" in troth(*SHORT, "--out", "here").err

    def test_the_same_run_again_gives_the_same_bytes(self, troth: Troth) -> None:
        files = [Path("here") / name for name in RESULTS if name != "events.jsonl"]  # which has times in it
        troth(*SHORT, "--out", "here")
        before = [file.read_bytes() for file in files]
        assert troth(*SHORT, "--out", "here").code == 0
        assert [file.read_bytes() for file in files] == before


class TestInterrupted:
    @pytest.mark.parametrize("out", ["here", "new/folders/here"])
    def test_exits_with_130_and_leaves_nothing(self, troth: Troth, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
        monkeypatch.setattr("troth.workshop.simulation.Started.__next__", _interrupted)
        done = troth(*SHORT, "--out", out, "--json")
        assert done.code == 130
        assert done.out == ""
        assert list(Path().iterdir()) == []

    def test_a_folder_that_was_there_stays(self, troth: Troth, monkeypatch: pytest.MonkeyPatch) -> None:
        Path("here").mkdir()
        monkeypatch.setattr("troth.workshop.simulation.Started.__next__", _interrupted)
        assert troth(*SHORT, "--out", "here/below").code == 130
        assert list(Path("here").iterdir()) == []

    @pytest.mark.long
    @pytest.mark.parametrize("page", [(), ("--page", "--page-port", "0")], ids=["without a page", "with a page"])
    def test_results_that_were_there_stay(
        self, troth: Troth, monkeypatch: pytest.MonkeyPatch, page: tuple[str, ...]
    ) -> None:
        assert troth(*SHORT, "--out", "here", *page).code == 0
        before = {path: path.read_bytes() for path in Path("here").iterdir()}
        assert sorted(path.name for path in before) == RESULTS
        monkeypatch.setattr("troth.workshop.simulation.Started.__next__", _interrupted)
        assert troth(*SHORT, "--out", "here", *page).code == 130
        assert {path: path.read_bytes() for path in Path("here").iterdir()} == before


def _interrupted(_: Started) -> NoReturn:
    raise KeyboardInterrupt


def test_as_a_process_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "troth", *SHORT, "--out", "here", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == (tmp_path / "here/summary.json").read_bytes()
