"""Results of sweeps: kept at once, continued, put in order, never mixed with others."""

import errno
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workshop.lab.sweeps.tiny import TINY, inline, tiny
from troth.workshop.lab.files import SweepError
from troth.workshop.lab.reading import read_results
from troth.workshop.lab.results import Store
from troth.workshop.lab.run import Engine, Performed, Results, local, perform, ray, run_sweep
from troth.workshop.lab.sweep import SweepJob


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep."""
    folder = tmp_path_factory.mktemp("whole")
    sweep = tiny(folder)
    run_sweep(sweep, sweep.plan(), folder / "out", inline, at_once=1)
    return folder / "out"


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_a_line_holds_everything(whole: Path) -> None:
    found = {tuple(line["labels"].values()): line for line in lines(whole)}
    assert len(found) == 12
    attacked = found["sign-flip", "troth", 0]
    assert attacked["config"]["attack_start"] == 1
    assert attacked["outcome"]["steps"] == 4
    assert attacked["outcome"]["honest_banned"] == 0
    assert [point["step"] for point in attacked["curve"]] == [0, 4]
    assert attacked["metrics"] == {name: attacked["curve"][-1][name] for name in ("loss", "distance")}
    assert found["none", "mean", 1]["outcome"]["gradients"] == 16
    assert found["sign-flip", "mean", 0]["metrics"]["loss"] > 100 * found["none", "mean", 0]["metrics"]["loss"]
    assert (whole / "sweep.toml").read_text() == TINY


def test_a_report_reads_what_was_written(whole: Path) -> None:
    """A trusted server bans nobody, and its lines have no `bans`."""
    runs = {(run.labels["defence"], run.calm): run for run in read_results(whole).runs}
    assert len(runs) == 6
    assert runs["mean", False].out == {}


@pytest.mark.long
@pytest.mark.parametrize("after", [0, 1, 7])
def test_an_interrupted_sweep_ends_with_the_same_file(tmp_path: Path, whole: Path, after: int) -> None:
    sweep = tiny(tmp_path)

    def interrupted(jobs: Sequence[SweepJob], at_once: int, until: float | None) -> Results:
        for count, done in enumerate(inline(jobs, at_once, until)):
            if count == after:
                raise KeyboardInterrupt
            yield done

    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, sweep.plan(), tmp_path / "out", interrupted, at_once=1)
    assert len(lines(tmp_path / "out")) == after
    made = []
    run_sweep(sweep, sweep.plan(), tmp_path / "out", inline, at_once=1, on_run=lambda p, *_: made.append(p))
    assert (made[0].kept, made[-1].done) == (after, 12 - after)
    assert (tmp_path / "out/results.jsonl").read_bytes() == (whole / "results.jsonl").read_bytes()


def test_a_killed_sweep_leaves_a_torn_line_and_ends_with_the_same_file(tmp_path: Path, whole: Path) -> None:
    text = (whole / "results.jsonl").read_text()
    (tmp_path / "results.jsonl").write_text(text[: len(text) // 2])
    sweep = tiny(tmp_path)
    run_sweep(sweep, sweep.plan(), tmp_path, inline, at_once=1)
    assert (tmp_path / "results.jsonl").read_text() == text


@pytest.mark.long
@pytest.mark.parametrize("end", [b'{"key": "\xcf', b"\xff\xfe\x00", b'{"key": "a", "labels": {}}'])
def test_a_line_torn_within_a_character_is_torn_like_any_other(tmp_path: Path, whole: Path, end: bytes) -> None:
    text = (whole / "results.jsonl").read_bytes()
    (tmp_path / "results.jsonl").write_bytes(text[: text.index(b"\n") + 1] + end)
    (tmp_path / "times.jsonl").write_bytes(b'{"key": "a", "seconds": 1.0}\n{"key": "b", "sec')
    sweep = tiny(tmp_path)
    run_sweep(sweep, sweep.plan(), tmp_path, inline, at_once=1)
    assert (tmp_path / "results.jsonl").read_bytes() == text
    times = [json.loads(line) for line in (tmp_path / "times.jsonl").read_text().splitlines()]
    assert len(times) == 12  # the torn one is gone, and nothing is glued to it


@pytest.mark.long
def test_a_folder_has_one_writer(tmp_path: Path, whole: Path) -> None:
    """Otherwise each would put the file in order by what it knows, without the other's runs."""
    sweep = tiny(tmp_path)
    store = Store(tmp_path, sweep, sweep.plan().cells)
    with pytest.raises(SweepError, match="another 'troth lab run' writes to `out`"):
        Store(tmp_path, sweep, sweep.plan().cells)
    store.close()
    run_sweep(sweep, sweep.plan(), tmp_path, inline, at_once=1)
    assert (tmp_path / "results.jsonl").read_bytes() == (whole / "results.jsonl").read_bytes()


@pytest.mark.long
def test_a_full_disk_keeps_what_was_there(tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a line is written when the disk is full, and so is half of the file in order."""
    sweep, kept = tiny(tmp_path), 0

    def full(_handle: int) -> None:
        nonlocal kept
        kept += 1
        if kept > 6:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("troth.workshop.lab.results.os.fsync", full)
    with pytest.raises(SweepError, match=r"No space left on device; the runs that were kept are there"):
        run_sweep(sweep, sweep.plan(), tmp_path, inline, at_once=1)
    monkeypatch.undo()
    made = []
    run_sweep(sweep, sweep.plan(), tmp_path, inline, at_once=1, on_run=lambda p, *_: made.append(p))
    assert made[0].kept > 0
    assert (tmp_path / "results.jsonl").read_bytes() == (whole / "results.jsonl").read_bytes()


def test_another_sweeps_results_are_not_mixed_in(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "results.jsonl").write_bytes((whole / "results.jsonl").read_bytes())
    changed = tiny(tmp_path, TINY.replace('"none", ', "").replace("seeds = [0, 1]", "seeds = [1, 2]"))
    with pytest.raises(SweepError, match="holds 9 runs that are not this sweep's, of sweep 'tiny'"):
        Store(tmp_path, changed, changed.plan().cells)
    assert (tmp_path / "results.jsonl").read_bytes() == (whole / "results.jsonl").read_bytes()
    made = []
    run_sweep(changed, changed.plan(), tmp_path, inline, at_once=1, extend=True, on_run=lambda p, *_: made.append(p))
    assert (made[0].kept, made[0].of) == (3, 3)
    assert len((tmp_path / "set-aside.jsonl").read_text().splitlines()) == 9
    assert [line["labels"]["seed"] for line in lines(tmp_path)] == [1, 2] * 3


@pytest.mark.long
def test_only_a_part_of_it_and_then_the_rest(tmp_path: Path, whole: Path) -> None:
    sweep = tiny(tmp_path)
    plan = sweep.plan()
    run_sweep(sweep, plan, tmp_path, inline, at_once=1, only=plan.only({"defence": ["mean"]}))
    assert {line["labels"]["defence"] for line in lines(tmp_path)} == {"mean"}
    run_sweep(sweep, plan, tmp_path, inline, at_once=1)
    assert (tmp_path / "results.jsonl").read_bytes() == (whole / "results.jsonl").read_bytes()


@pytest.mark.long
def test_a_run_that_fails_is_said_and_tried_again(tmp_path: Path, whole: Path) -> None:
    sweep = tiny(tmp_path)

    def failing(jobs: Sequence[SweepJob], at_once: int, until: float | None) -> Results:
        for job, done in inline(jobs, at_once, until):
            yield job, Performed({"error": "out of memory"}, 0.0) if job.options["defence"] == "troth" else done

    store = run_sweep(sweep, sweep.plan(), tmp_path, failing, at_once=1)
    assert [line["error"] for line in store.failed] == ["out of memory"] * 4
    again = run_sweep(sweep, sweep.plan(), tmp_path, inline, at_once=1)
    assert not again.failed
    assert (tmp_path / "results.jsonl").read_bytes() == (whole / "results.jsonl").read_bytes()


def test_an_error_in_any_characters_is_kept(tmp_path: Path) -> None:
    sweep = tiny(tmp_path)

    def failing(jobs: Sequence[SweepJob], _at_once: int, _until: float | None) -> Results:
        yield jobs[0], Performed({"error": "no file \udcff τ"}, 0.0)

    run_sweep(sweep, sweep.plan(), tmp_path, failing, at_once=1)
    assert {line["error"] for line in lines(tmp_path)} == {"no file \udcff τ"}


def test_an_error_is_a_result(tmp_path: Path) -> None:
    (tmp_path / "rule.py").write_text(
        "def rule(vectors):\n    if len(vectors) == 4 and vectors.shape[1] > 5:\n        1 / 0\n    return vectors[0]\n"
    )
    sweep = tiny(tmp_path, TINY.replace('"mean"', '"rule.py"'))
    plan = sweep.plan()
    job = next(cell.job for cell in plan.cells if cell.labels["defence"] == "rule.py")
    assert "rule.py', line 3, in rule: ZeroDivisionError" in perform(job).found["error"]


def test_a_file_that_changes_while_the_sweep_runs_gives_no_result(tmp_path: Path) -> None:
    """It would stand under the digest of the file as it was."""
    rule = tmp_path / "rule.py"
    rule.write_text("def rule(vectors):\n    return vectors[0]\n")
    plan = tiny(tmp_path, TINY.replace('"mean"', '"rule.py"')).plan()
    job = next(cell.job for cell in plan.cells if cell.labels["defence"] == "rule.py")
    assert not perform(job).failed
    rule.write_text("def rule(vectors):\n    return vectors[1]\n")
    assert "is not the one that the sweep began with" in perform(job).found["error"]


def test_a_run_does_not_depend_on_what_ran_in_its_process_before(tmp_path: Path) -> None:
    """A user's rule that sets the type of new tensors does so for its own run alone."""
    (tmp_path / "rule.py").write_text(
        "import torch\n\ndef rule(vectors):\n    torch.set_default_dtype(torch.float64)\n    return vectors[0]\n"
    )
    (tmp_path / "later.py").write_text(
        "import torch\n\ndef later(vectors):\n    return vectors.mean(dim=0) * torch.tensor([1 / 3]).double()\n"
    )
    plan = tiny(tmp_path, TINY.replace('"troth"', '"rule.py"').replace('"mean"', '"later.py"')).plan()
    jobs = {cell.labels["defence"]: cell.job for cell in plan.cells}
    try:
        torch.set_default_dtype(torch.float32)  # planning has tried the rule already
        alone = perform(jobs["later.py"]).found
        perform(jobs["rule.py"])
        assert perform(jobs["later.py"]).found == alone
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "[" * 100_000,
        '{"key": "a", "labels": {"seed": NaN}}',
        '{"key": 3}',
        '{"key": "a"}',
        '{"key": "a", "labels": 3}',
    ],
)
def test_a_damaged_file_is_refused_by_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "results.jsonl").write_text(content + "\n")
    sweep = tiny(tmp_path)
    with pytest.raises(SweepError, match=r"results.jsonl, line 1: "):
        Store(tmp_path, sweep, sweep.plan().cells)
    assert (tmp_path / "results.jsonl").read_text() == content + "\n"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sweep = tiny(tmp_path)
    with pytest.raises(SweepError, match="cannot write to `out`"):
        Store(tmp_path / "file", sweep, sweep.plan().cells)


@pytest.mark.long
def test_processes_give_the_same_file(tmp_path: Path, whole: Path) -> None:
    run_some(tmp_path, local)
    assert lines(tmp_path) == [line for line in lines(whole) if line["labels"]["defence"] == "mean"]


@pytest.mark.long
def test_ray_gives_the_same_file(tmp_path: Path, whole: Path) -> None:
    """A cluster of its own on this machine."""
    pytest.importorskip("ray")
    run_some(tmp_path, ray)
    assert lines(tmp_path) == [line for line in lines(whole) if line["labels"]["defence"] == "mean"]


def run_some(folder: Path, engine: Engine) -> None:
    """A third of the sweep, in another order than its own."""
    sweep = tiny(folder)
    plan = sweep.plan()
    run_sweep(sweep, plan, folder, engine, at_once=1, only=plan.only({"defence": ["mean"]}))


def test_the_time_is_up(tmp_path: Path) -> None:
    sweep = tiny(tmp_path)
    store = run_sweep(sweep, sweep.plan(), tmp_path, local, at_once=1, until=time.monotonic() + 0.2)
    assert len(store.missing) == 12
    assert os.listdir(tmp_path)
