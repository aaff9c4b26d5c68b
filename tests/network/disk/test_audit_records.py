"""Audit records of the last steps, on disk: read back as they were, or not at all (SPEC K1, B5)."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.protocol.scripted_world import plan, run_world
from troth.crypto import Digest
from troth.network.disk.audit_records import AuditRecordFiles
from troth.network.disk.checkpoints import Checkpoints
from troth.protocol.core.state import State
from troth.simulation.chaos.world import World
from troth.training.work import Training


@cache
def world() -> World:
    return run_world(plan(liars=(), steps=5)).world


def files_of_five_steps(folder: Path, *, every_model: bool = True) -> tuple[AuditRecordFiles, State[Training]]:
    """The files of a peer that stopped after five steps, and its last state without audit records."""
    run, work = world().run, world().work
    checkpoints = Checkpoints(folder, run.id, work)
    files = AuditRecordFiles(folder, run.id, checkpoints)
    for outcome in world().witness:
        files.save(outcome.state)
        checkpoints.save(outcome.state)
    if not every_model:
        (folder / "step-000000004.safetensors").unlink()
    return AuditRecordFiles(folder, run.id, Checkpoints(folder, run.id, work)), replace(outcome.state, audit_records={})


def test_the_records_of_the_last_two_steps_are_read_back_as_they_were(tmp_path: Path) -> None:
    """[K1, B5] With the model that gradients were taken at: so a restart can audit everyone."""
    files, bare = files_of_five_steps(tmp_path)
    before, after = world().witness[-1].state, files.onto(bare)
    assert set(after.audit_records) == {3, 4} == set(before.audit_records)
    for step, one in before.audit_records.items():
        again = after.audit_records[step]
        assert torch.equal(again.aggregate_D, one.aggregate_D)
        assert torch.equal(again.training.parameters_D, one.training.parameters_D)
        assert replace(again, aggregate_D=one.aggregate_D, training=one.training) == one
    assert len(list(tmp_path.glob("*.audit"))) == 3


def test_a_record_that_is_damaged_of_another_run_or_without_its_model_is_passed_over(tmp_path: Path) -> None:
    """[K1] An audit by something else would accuse somebody honest."""
    files, bare = files_of_five_steps(tmp_path, every_model=False)
    assert set(files.onto(bare).audit_records) == {3}
    path = tmp_path / "step-000000003.audit"
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole + b"\0", b"", whole.replace(world().run.id, bytes(32), 1)):
        path.write_bytes(damaged)
        assert files.onto(bare).audit_records == {}
    path.write_bytes(whole)
    other = AuditRecordFiles(tmp_path, Digest(bytes(32)), Checkpoints(tmp_path, world().run.id, world().work))
    assert other.onto(bare).audit_records == {}


def test_with_a_large_model_a_record_is_saved_when_the_peer_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[K1] With the model before, which may not have been saved."""
    monkeypatch.setattr("troth.network.disk.checkpoints._SMALL", 0)
    checkpoints = Checkpoints(tmp_path, world().run.id, world().work)
    files, state = AuditRecordFiles(tmp_path, world().run.id, checkpoints), world().witness[-1].state
    files.save(state)
    assert list(tmp_path.iterdir()) == []
    files.save(state, whole=True)
    assert set(files.onto(replace(state, audit_records={})).audit_records) == {4}
