"""Audit records of the last steps, on disk: read back as they were, or not at all (SPEC K1, B5)."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.protocol.scripted_world import plan, run_world
from troth.crypto import Digest
from troth.network.disk.audit_records import AuditRecordFiles
from troth.network.disk.checkpoints import AggregateFiles, Checkpoints
from troth.protocol.core.state import AuditRecord, State
from troth.training.work import Training
from troth.workshop.chaos.world import World


@cache
def world() -> World:
    return run_world(plan(liars=(), steps=5)).world


def bare_files(folder: Path, run: Digest | None = None) -> tuple[AuditRecordFiles, AggregateFiles]:
    aggregates = AggregateFiles(folder, world().run.parameters.size)
    checkpoints = Checkpoints(folder, world().run.id, world().work)
    return AuditRecordFiles(folder, run or world().run.id, checkpoints, aggregates), aggregates


def files_of_five_steps(folder: Path, *, every_model: bool = True) -> tuple[AuditRecordFiles, State[Training]]:
    """The files of a peer that stopped after five steps, and its last state without audit records."""
    run, work = world().run, world().work
    checkpoints = Checkpoints(folder, run.id, work)
    files, _ = bare_files(folder)
    for outcome in world().witness:
        files.save(outcome.state)
        checkpoints.save(outcome.state)
    if not every_model:
        (folder / "step-000000004.safetensors").unlink()
    return bare_files(folder)[0], replace(outcome.state, audit_records={})


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
    other, _ = bare_files(tmp_path, Digest(bytes(32)))
    assert other.onto(bare).audit_records == {}


def test_with_a_large_model_aggregates_lie_in_files_and_models_come_from_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[K1] No model is saved for an audit, and nothing large is hashed twice."""
    monkeypatch.setattr("troth.network.disk.checkpoints._SMALL", 0)
    files, bare = bare_files(tmp_path), replace(world().witness[-1].state, audit_records={})
    aggregates: dict[int, AuditRecord[Training]] = {}
    for outcome in world().witness:
        assert files[1].add(outcome.state)
        files[0].save(outcome.state)
        aggregates.update(outcome.state.audit_records)
    files[1].wait()
    assert list(tmp_path.glob("*.safetensors")) == []
    assert files[0].onto(bare).audit_records == {}, "nobody gave it the models"
    earlier = [outcome.state for outcome in world().witness]
    found = files[0].onto(bare, earlier).audit_records
    assert set(found) == {3, 4}
    for step, one in found.items():
        assert torch.equal(one.aggregate_D, aggregates[step].aggregate_D)
        assert replace(one, aggregate_D=aggregates[step].aggregate_D) == aggregates[step]
    path = tmp_path / "step-000000004.aggregate"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert set(files[0].onto(bare, earlier).audit_records) == {3}
