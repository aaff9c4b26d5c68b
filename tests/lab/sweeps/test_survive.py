"""Runs under way are kept, and go on where they were: the results are the same file, byte for byte."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.lab.sweeps.tiny import inline, tiny
from troth.lab.sweeps import unfinished
from troth.lab.sweeps.engines import Results, local
from troth.lab.sweeps.perform import Performed, perform
from troth.lab.sweeps.run import Progress, run_sweep
from troth.lab.sweeps.sweep import Job, Plan
from troth.lab.sweeps.unfinished import Keeping, forget, halfway

SWEEP = """
name = "survive"
order = "as written"
[fixed]
task = "quadratic:dimension=60"
peers = 7
byzantine = 2
steps = 12
evaluate_every = 5
attack_start = 2
[axes]
defence = [
    "troth",
    "median",
    "safeguard",
    {label = "clip", defence = "centered-clip-momentum", momentum = 0.9},
]
attack = ["delayed-gradient:delay=3", "sign-flip"]
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return tiny(tmp_path_factory.mktemp("sweep"), SWEEP).plan()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    sweep = tiny(folder, SWEEP)
    run_sweep(sweep, sweep.plan(), folder, inline, at_once=1)
    return folder


def of_troth(plan: Plan) -> Job:
    return plan.cells[0].job


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Runs are asked to stop after so many steps of theirs."""
    asked = iter(range(1, 1_000_000))
    monkeypatch.setattr(unfinished, "_LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(unfinished, "asked_to_stop", lambda: next(asked) % steps == 0)


def keeping_inline(keeping: Keeping, jobs: Sequence[Job], *_: object) -> Results:
    for job in jobs:
        yield job, perform(job, keeping)


@pytest.mark.parametrize("steps", [1, 5])
def test_stopped_every_few_steps_it_ends_with_the_same_file(
    steps: int, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run is stopped again and again, and goes on from its file: until all are there."""
    sweep, out = tiny(tmp_path, SWEEP), tmp_path / "out"
    engine = partial(keeping_inline, Keeping.beside(out))
    stop_after(monkeypatch, steps)
    said: list[tuple[Progress, Performed]] = []
    calls = 0
    while not said or said[-1][0].done < said[-1][0].of:
        said.clear()
        run_sweep(
            sweep,
            sweep.plan(),
            out,
            engine,
            at_once=1,
            on_run=lambda p, _, done: said.append((p, done)),  # type: ignore[arg-type]
        )
        calls += 1
        assert calls < 20
    assert calls > 2
    assert (out / "results.jsonl").read_bytes() == (whole / "results.jsonl").read_bytes()
    assert not (out / "unfinished").exists()
    assert said[-1][0].resumed == said[-1][0].done
    times = [json.loads(line)["seconds"] for line in (out / "times.jsonl").read_text().splitlines()]
    assert len(times) == 8
    assert min(times) > 0


def test_a_run_that_was_stopped_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = tiny(tmp_path, SWEEP)
    stop_after(monkeypatch, 3)
    said: list[Progress] = []
    engine = partial(keeping_inline, Keeping.beside(tmp_path))
    store = run_sweep(sweep, sweep.plan(), tmp_path, engine, at_once=1, on_run=lambda p, *_: said.append(p))
    assert len(store.missing) == 8
    assert (said[0].halfway, said[-1].halfway, said[-1].done) == (0, 8, 0)
    assert (tmp_path / "results.jsonl").read_bytes() == b""


def test_a_checkpoint_is_written_as_often_as_asked_for(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that a run's steps turn; and never so often that writing takes more than a twentieth of the time."""
    clock, written = [0.0], []
    monkeypatch.setattr("troth.lab.sweeps.unfinished.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(unfinished, "asked_to_stop", lambda: clock.__setitem__(0, clock[0] + 10.0))

    def write(*_: object) -> None:
        written.append(clock[0])
        clock[0] += 1.0  # a second for each

    monkeypatch.setattr(unfinished, "write_snapshot", write)
    perform(of_troth(plan), Keeping.beside(tmp_path, every_s=15.0))
    assert written == [30.0, 61.0, 92.0, 123.0]


def test_between_two_looks_a_step_costs_a_look_at_the_clock(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(unfinished, "_LOOK_EVERY_S", 1e9)
    monkeypatch.setattr(unfinished, "asked_to_stop", lambda: looks.append(1))
    perform(of_troth(plan))
    assert len(looks) == 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "another run", "another version"])
def test_a_checkpoint_that_cannot_be_used_costs_time_and_nothing_else(
    damage: str, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, keeping = of_troth(plan), Keeping.beside(tmp_path)
    right = perform(job).found
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        if damage == "another version":
            patch.setattr("troth.simulation.lockstep.snapshots.file.__version__", "0.0")
        assert perform(job, keeping).stopped
    path = keeping.path(job.key)
    raw = path.read_bytes()
    damaged = {"cut": raw[:-1], "flipped": raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:], "empty": b""}
    path.write_bytes(damaged.get(damage, raw))
    if damage == "another run":
        other = plan.cells[1].job
        path.rename(keeping.path(other.key))
        job, right = other, perform(other).found
    again = perform(job, keeping)
    assert again.found == right
    assert not again.resumed
    assert "it began anew, since what was kept of it cannot be used" in again.notes[0]


def test_a_large_run_is_not_kept_and_says_so(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = perform(of_troth(plan))
    stop_after(monkeypatch, 1000)
    done = perform(of_troth(plan), Keeping.beside(tmp_path, every_s=0.0, most_bytes=10_000))
    assert done.found == right.found
    assert len(done.notes) == 1
    assert "it is not kept while it is under way: a checkpoint of it has" in done.notes[0]
    assert not (tmp_path / "unfinished").exists()


OWN = """
from troth.attacks import GradientAttack

class Mine(GradientAttack):
    def begin(self, seed):
        past = []
        def forge(members, own, honest):
            past.append(own)
            return past[0]
        return forge
"""


def test_a_users_own_attack_with_a_memory_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    text = SWEEP.replace('"delayed-gradient:delay=3", "sign-flip"', '"mine.py"')
    job, keeping = tiny(tmp_path, text).plan().cells[1].job, Keeping.beside(tmp_path)
    right = perform(job).found
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        stopped = perform(job, keeping)
    assert stopped.stopped
    assert "does not say what it remembers" in stopped.notes[0]
    again = perform(job, keeping)
    assert (again.found, again.resumed) == (right, False)


def test_a_full_disk_does_not_stop_a_run(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    stop_after(monkeypatch, 1000)
    monkeypatch.setattr(unfinished, "write_snapshot", full)
    done = perform(of_troth(plan), Keeping.beside(tmp_path, every_s=0.0))
    assert not done.failed
    assert "No space left on device" in done.notes[0]


def test_what_failed_from_a_checkpoint_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint may be the reason; without one it is kept, for the next try."""
    sweep, keeping = tiny(tmp_path, SWEEP), Keeping.beside(tmp_path)
    plan = sweep.plan()
    jobs = plan.jobs()[:2]
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        for job in jobs:
            assert perform(job, keeping).stopped

    def failing(_jobs: Sequence[Job], *_: object) -> Results:
        yield jobs[0], Performed({"error": "out of memory"}, 0.0, resumed=True)
        yield jobs[1], Performed({"error": "out of memory"}, 0.0)

    run_sweep(sweep, plan, tmp_path, failing, at_once=1)
    assert halfway(tmp_path, [job.key for job in jobs]) == {jobs[1].key}


def test_what_is_left_of_a_finished_run_is_removed(tmp_path: Path, whole: Path) -> None:
    sweep = tiny(tmp_path, SWEEP)
    plan = sweep.plan()
    (tmp_path / "results.jsonl").write_bytes((whole / "results.jsonl").read_bytes())
    key = plan.jobs()[0].key
    (tmp_path / "unfinished").mkdir()
    for name in (f"{key}.safetensors", f"{key}.safetensors.77.partial", "another.safetensors"):
        (tmp_path / "unfinished" / name).write_bytes(b"")
    run_sweep(sweep, plan, tmp_path, inline, at_once=1)
    assert os.listdir(tmp_path / "unfinished") == ["another.safetensors"]
    forget(tmp_path, "another")
    assert not (tmp_path / "unfinished").exists()


def test_the_order_is_that_of_the_file_where_asked_for(tmp_path: Path) -> None:
    plan = tiny(tmp_path, SWEEP).plan()
    assert plan.jobs() == [cell.job for cell in plan.cells]
    assert plan.only({"defence": ["clip", "troth"]}).jobs() == [plan.cells[k].job for k in (0, 1, 6, 7)]
    mixed = tiny(tmp_path, SWEEP.replace('order = "as written"', "")).plan()
    assert mixed.jobs() == sorted(plan.jobs(), key=lambda job: job.key) != plan.jobs()


# Real processes

OPTIONS = ("--out", "out", "--only", "defence=troth", "--checkpoint-every", "0.2")
LONG = SWEEP.replace("steps = 12", "steps = 150").replace(', "sign-flip"', "")


def command(folder: Path) -> subprocess.Popen[str]:
    (folder / "long.toml").write_text(LONG)
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
        time.sleep(0.05)


@pytest.fixture(scope="module")
def long_whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("long")
    sweep = tiny(folder, LONG)
    plan = sweep.plan()
    run_sweep(sweep, plan, folder / "out", inline, at_once=1, only=plan.only({"defence": ["troth"]}))
    return (folder / "out/results.jsonl").read_bytes()


def processes_of(child: int) -> set[int]:
    return {int(pid) for pid in Path(f"/proc/{child}/task/{child}/children").read_text().split()}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_in_the_middle_and_run_again(number: signal.Signals, tmp_path: Path, long_whole: bytes) -> None:
    """The same command ends with the same bytes, and nobody who was cut off goes on working."""
    child = command(tmp_path)
    wait_for(lambda: list(tmp_path.glob("out/unfinished/*.safetensors")) or child.poll() is not None)
    others = processes_of(child.pid)
    child.send_signal(number)
    said, _ = child.communicate(timeout=60)
    assert child.returncode == (-9 if number == signal.SIGKILL else 128 + number), said
    assert "Traceback" not in said
    assert number == signal.SIGKILL or "1 of the runs half-way; the same command goes on" in said
    assert not (tmp_path / "out/results.jsonl").read_bytes()
    assert list(tmp_path.glob("out/unfinished/*.safetensors")), said
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in others), 30)
    again = command(tmp_path)
    said, _ = again.communicate(timeout=240)
    assert again.returncode == 0, said
    assert "1 of 1 runs, 1 resumed" in said
    assert (tmp_path / "out/results.jsonl").read_bytes() == long_whole
    assert not (tmp_path / "out/unfinished").exists()


def test_the_time_is_up_and_runs_are_kept(tmp_path: Path, long_whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has not made a step yet makes one, if it has the time for it."""
    monkeypatch.setattr("troth.lab.sweeps.engines.GRACE_S", 100.0)
    sweep, out = tiny(tmp_path, LONG), tmp_path / "out"
    plan = sweep.plan()
    only, engine, stops = plan.only({"defence": ["troth"]}), Keeping.beside(out), []

    def run(until: float | None) -> list[Performed | None]:
        said: list[Performed | None] = []
        keeping_local = partial(local, keeping=engine, on_stop=lambda: stops.append(1))
        run_sweep(
            sweep, plan, out, keeping_local, at_once=1, only=only, until=until, on_run=lambda _p, _j, d: said.append(d)
        )
        return said

    first = run(time.monotonic() + 0.1)[-1]
    assert first is not None
    assert first.stopped
    assert stops == [1]
    last = run(None)[-1]
    assert last is not None
    assert last.resumed
    assert (out / "results.jsonl").read_bytes() == long_whole
