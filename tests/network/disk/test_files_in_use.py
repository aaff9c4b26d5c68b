"""Files that are written over, cut or deleted while a peer computes with what it read from them.

A digest was checked when the file was read. If the numbers still lay in the file, a copy of another checkpoint over it would make
this peer compute wrong gradients, for which honest members are banned; and a cut file would end the process.
"""

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.network.disk.slots import RUN
from tests.network.disk.test_audit_records import world
from tests.network.disk.test_checkpoints import state_at, work
from troth.network.disk.checkpoints import AggregateFiles, Checkpoints, find_model
from troth.resting import resting
from troth.training.work import Training, TrainingWork, state_digest, training_of

__all__ = ["work"]  # a fixture


def _write_over(path: Path) -> None:
    """As `cp` does: the file stays the same one, with other bytes."""
    with path.open("r+b") as file:
        file.seek(-64, 2)
        file.write(b"?" * 64)


def _cut(path: Path) -> None:
    _write_over(path)
    with path.open("r+b") as file:
        file.truncate(8)


ACCIDENTS: dict[str, Callable[[Path], object]] = {"written over": _write_over, "cut": _cut, "deleted": Path.unlink}


@pytest.fixture(params=[1, 1 << 25], ids=["large", "small"])
def _size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether vectors of this length count as large, and do not stay in memory."""
    monkeypatch.setattr("troth.resting.RESTS_FROM", request.param)


@pytest.mark.usefixtures("_size")
@pytest.mark.parametrize("accident", ACCIDENTS)
def test_a_model_that_was_read_is_not_changed_by_what_becomes_of_its_file(
    tmp_path: Path, work: TrainingWork, accident: str
) -> None:
    state = state_at(work, 1)
    Checkpoints(tmp_path, RUN, work).save(state)
    path = tmp_path / "step-000000001.safetensors"
    found = Checkpoints(tmp_path, RUN, work).last(state_at(work, 0)).state.training
    shown = find_model(tmp_path, RUN, work).training
    ACCIDENTS[accident](path)
    assert state_digest(found) == state_digest(state.training)
    assert state_digest(shown) == state_digest(state.training)


@pytest.mark.usefixtures("_size")
@pytest.mark.parametrize("accident", ACCIDENTS)
def test_an_aggregate_that_was_read_is_not_changed_by_what_becomes_of_its_file(tmp_path: Path, accident: str) -> None:
    files, state = AggregateFiles(tmp_path, world().run.parameters.size), world().witness[0].state
    assert files.add(state)
    files.wait()
    assert state.last is not None
    found_D = files.read(state.last.record)
    assert found_D is not None
    ACCIDENTS[accident](tmp_path / "step-000000000.aggregate")
    assert torch.equal(found_D, state.audit_records[0].aggregate_D)


def test_large_models_that_were_read_rest_in_files_without_a_name(
    tmp_path: Path, work: TrainingWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three states are read when a peer comes back, and it has memory for one."""
    monkeypatch.setattr("troth.resting.RESTS_FROM", 1)
    checkpoints = Checkpoints(tmp_path, RUN, work)
    for step in (1, 2, 3):
        checkpoints.save(state_at(work, step))
    gc.collect()
    names, before = sorted(tmp_path.iterdir()), resting()
    found = checkpoints.last(state_at(work, 0))
    assert resting() >= before + len(found.state.training.vectors)
    assert sorted(tmp_path.iterdir()) == names


def test_whoever_maps_a_checkpoint_keeps_it_when_the_next_one_of_that_name_is_written(
    tmp_path: Path, work: TrainingWork
) -> None:
    """A step may be made again, and people look at checkpoints of a running peer with other tools."""
    checkpoints, state = Checkpoints(tmp_path, RUN, work), state_at(work, 1)
    checkpoints.save(state)
    mapped = training_of(load_file(tmp_path / "step-000000001.safetensors"))
    assert isinstance(mapped, Training)
    other = Training(state.training.parameters_D + 1, state.training.optimizer)
    checkpoints.save(replace(state, training=other, model=work.digest(other)))
    assert state_digest(mapped) == state_digest(state.training)
    assert state_digest(find_model(tmp_path, RUN, work).training) == state_digest(other)
