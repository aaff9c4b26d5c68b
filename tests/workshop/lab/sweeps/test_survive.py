"""A sweep that is cut off, and run again: the results are the same file, byte for byte."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.workshop.lab.sweeps.tiny import TINY, inline, tiny
from troth.workshop.lab.run import run_sweep

SWEEP = TINY.replace("steps = 4", "steps = 120").replace("seeds = [0, 1]", 'seeds = [0]\norder = "as written"')
OPTIONS = ("--out", "out", "--only", "defence=troth", "--workers", "1")


def test_the_order_is_that_of_the_file_where_asked_for(tmp_path: Path) -> None:
    plan = tiny(tmp_path, SWEEP).plan()
    assert plan.jobs() == [cell.job for cell in plan.cells]
    assert plan.only({"defence": ["mean", "troth"]}).jobs() == [plan.cells[k].job for k in (0, 1, 3, 4)]
    mixed = tiny(tmp_path, SWEEP.replace('order = "as written"', "")).plan()
    assert mixed.jobs() == sorted(plan.jobs(), key=lambda job: job.key) != plan.jobs()


def command(folder: Path) -> subprocess.Popen[str]:
    (folder / "long.toml").write_text(SWEEP)
    return subprocess.Popen(
        [sys.executable, "-m", "troth", "lab", "run", "long.toml", *OPTIONS],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def wait_for(what: Any, seconds: float = 90.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("long")
    sweep = tiny(folder, SWEEP)
    plan = sweep.plan()
    run_sweep(sweep, plan, folder / "out", inline, at_once=1, only=plan.only({"defence": ["troth"]}))
    return (folder / "out/results.jsonl").read_bytes()


def processes_of(child: int) -> set[int]:
    return {int(pid) for pid in Path(f"/proc/{child}/task/{child}/children").read_text().split()}


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_in_the_middle_and_run_again(number: signal.Signals, tmp_path: Path, whole: bytes) -> None:
    """The first run stays, the second is made again, and nobody who was cut off goes on working."""
    child, results = command(tmp_path), tmp_path / "out/results.jsonl"
    wait_for(lambda: (results.exists() and results.read_bytes()) or child.poll() is not None)
    others = processes_of(child.pid)
    assert others
    child.send_signal(number)
    said, _ = child.communicate(timeout=60)
    assert child.returncode == (128 + number if number == signal.SIGINT else -number), said
    assert "Traceback" not in said
    assert number != signal.SIGINT or "the same command goes on" in said
    assert len(results.read_bytes().splitlines()) == 1
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in others), 30)
    again = command(tmp_path)
    said, _ = again.communicate(timeout=240)
    assert again.returncode == 0, said
    assert "2 of 2 runs (1 from before)" in said
    assert results.read_bytes() == whole
