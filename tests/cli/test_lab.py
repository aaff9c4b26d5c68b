"""`troth lab`: what it prints, what it keeps, what it refuses."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import Troth
from tests.workshop.lab.sweeps.tiny import TINY, inline
from troth.workshop.lab import run
from troth.workshop.lab.recipes import recipes
from troth.workshop.lab.run import Performed, Results
from troth.workshop.lab.sweep import SweepJob


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process."""
    monkeypatch.setitem(run.ENGINES, "local", inline)


def written(name: str = "tiny.toml", text: str = TINY) -> str:
    Path(name).write_text(text)
    return name


class TestRun:
    def test_results_lie_in_a_folder_of_its_name(self, troth: Troth) -> None:
        done = troth("lab", "run", written())
        assert done.code == 0
        assert "results/tiny/results.jsonl" in done.out
        assert "12 of 12 runs" in done.err
        assert len(Path("results/tiny/results.jsonl").read_text().splitlines()) == 12

    def test_a_second_time_there_is_nothing_to_do(self, troth: Troth, monkeypatch: pytest.MonkeyPatch) -> None:
        troth("lab", "run", written(), "--only", "defence=mean")

        def none_left(jobs: Sequence[SweepJob], *_: object) -> Results:
            assert not jobs
            yield from ()

        monkeypatch.setitem(run.ENGINES, "local", none_left)
        assert troth("lab", "run", "tiny.toml", "--only", "defence=mean").code == 0

    def test_own_files_beside_the_sweep(self, troth: Troth) -> None:
        """An attack and a rule of the user's take part by name."""
        Path("there").mkdir()
        for kind in ("attack", "defence"):
            Path(f"there/my_{kind}.py").write_text(troth("example", kind).out)
        text = TINY.replace('"sign-flip"', '"my_attack.py"').replace('"mean"', '"my_defence.py"')
        assert troth("lab", "run", written("there/mine.toml", text)).code == 0
        lines = [json.loads(line) for line in Path("results/tiny/results.jsonl").read_text().splitlines()]
        assert {line["labels"]["defence"] for line in lines} == {"troth", "my_defence.py", "krum of one"}
        assert set(lines[-1]["config"]["files"]) == {"my_attack.py"}

    def test_a_failed_run_is_named_and_the_exit_code_says_so(
        self, troth: Troth, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(jobs: Sequence[SweepJob], *_: object) -> Results:
            for job in jobs:
                yield job, Performed({"error": "out of memory"}, 0.0)

        monkeypatch.setitem(run.ENGINES, "local", failing)
        done = troth("lab", "run", written(), "--only", "defence=mean", "--only", "seed=1", "--only", "attack=none")
        assert done.code == 1
        assert "attack none, defence mean, seed 1: out of memory" in done.out
        assert "the same command tries them again" in done.out

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (("no.toml",), "cannot read no.toml"),
            (("matrxi",), "did you mean matrix?"),
            (("tiny.toml", "--only", "mean"), "--only takes axis=label"),
            (("tiny.toml", "--only", "defence=men"), "--only defence=men is no label"),
            (("tiny.toml", "--workers", "0"), "Invalid value for '--workers'"),
            (("tiny.toml", "--minutes", "0"), "--minutes must be positive"),
            (("tiny.toml", "--engine", "rey"), "did you mean ray?"),
            (("tiny.toml", "--ray-address", "here:1"), "--ray-address is for --engine ray"),
            (("tiny.toml", "--device", "tpu"), "--device is cpu or cuda"),
            (("noniid-mnist",), "name its folder, --data"),
        ],
    )
    def test_mistakes(self, troth: Troth, arguments: tuple[str, ...], says: str) -> None:
        written()
        done = troth("lab", "run", *arguments)
        assert (done.code, Path("results").exists()) == (2, False)
        assert says in done.err


@pytest.mark.long
def test_ctrl_c_keeps_what_was_done(tmp_path: Path) -> None:
    """Real processes: one line for people, no traceback, nobody left behind."""
    endless = TINY.replace("steps = 4", "steps = 100000").replace('"troth", ', "")
    (tmp_path / "long.toml").write_text(endless)
    child = subprocess.Popen(
        [sys.executable, "-m", "troth", "lab", "run", "long.toml", "--workers", "1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not (tmp_path / "results/tiny/sweep.toml").exists() and child.poll() is None:
        time.sleep(0.05)
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 130, out
    assert "the same command goes on" in out
    assert "Traceback" not in out


class TestRecipes:
    def test_all_are_listed(self, troth: Troth) -> None:
        out = troth("lab", "recipes").out
        assert all(name in out for name in recipes())

    @pytest.mark.long
    @pytest.mark.parametrize("name", sorted(recipes()))
    def test_every_run_of_each_is_possible(self, troth: Troth, name: str) -> None:
        """Checked as `troth lab run` checks them; no dataset is read for it."""
        from troth.workshop.lab.recipes import find_sweep

        sweep = find_sweep(name)
        assert sweep.name == name
        plan = sweep.plan(data=Path("data") if sweep.needs_data else None)
        assert not plan.skipped

    def test_one_is_a_beginning(self, troth: Troth) -> None:
        text = troth("lab", "recipes", "does-no-harm").out
        assert troth("lab", "run", written("mine.toml", text), "--only", "seed=11").code == 2
        assert 'name = "does-no-harm"' in text
