"""What audits of the last steps need, on disk: read back as it was, or not at all (SPEC K1, B5)."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.protocol.bent_world import plan, see
from troth.crypto import Digest
from troth.network.disk.audit_records import AuditRecordFiles
from troth.network.disk.checkpoints import Checkpoints
from troth.protocol.core.state import State
from troth.simulation.chaos.world import World
from troth.training.work import Training


@cache
def world() -> World:
    return see(plan(liars=(), steps=5)).world


def saved(folder: Path, *, every_model: bool = True) -> tuple[AuditRecordFiles, State[Training]]:
    """As a peer leaves it that stopped after five steps; and its last state without what it kept."""
    run, work = world().run, world().work
    checkpoints = Checkpoints(folder, run.id, work)
    kept = AuditRecordFiles(folder, run.id, checkpoints)
    for outcome in world().witness:
        kept.save(outcome.state)
        checkpoints.save(outcome.state)
    if not every_model:
        (folder / "step-000000004.safetensors").unlink()
    return AuditRecordFiles(folder, run.id, Checkpoints(folder, run.id, work)), replace(outcome.state, audit_records={})


def test_what_was_kept_of_the_last_two_steps_is_read_back_as_it_was(tmp_path: Path) -> None:
    """[K1, B5] With the model that gradients were taken at: so a restart can audit everyone."""
    kept, bare = saved(tmp_path)
    before, after = world().witness[-1].state, kept.onto(bare)
    assert set(after.audit_records) == {3, 4} == set(before.audit_records)
    for step, one in before.audit_records.items():
        again = after.audit_records[step]
        assert torch.equal(again.aggregate_D, one.aggregate_D)
        assert torch.equal(again.training.parameters_D, one.training.parameters_D)
        assert replace(again, aggregate_D=one.aggregate_D, training=one.training) == one
    assert len(list(tmp_path.glob("*.kept"))) == 3


def test_what_is_damaged_of_another_run_or_without_its_model_is_not_there(tmp_path: Path) -> None:
    """[K1] An audit by something else would accuse somebody honest."""
    kept, bare = saved(tmp_path, every_model=False)
    assert set(kept.onto(bare).audit_records) == {3}
    path = tmp_path / "step-000000003.kept"
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole + b"\0", b"", whole.replace(world().run.id, bytes(32), 1)):
        path.write_bytes(damaged)
        assert kept.onto(bare).audit_records == {}
    path.write_bytes(whole)
    other = AuditRecordFiles(tmp_path, Digest(bytes(32)), Checkpoints(tmp_path, world().run.id, world().work))
    assert other.onto(bare).audit_records == {}


def test_of_a_large_model_it_is_kept_when_the_peer_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[K1] With the model before, which may not have been saved."""
    monkeypatch.setattr("troth.network.disk.checkpoints._SMALL", 0)
    checkpoints = Checkpoints(tmp_path, world().run.id, world().work)
    kept, state = AuditRecordFiles(tmp_path, world().run.id, checkpoints), world().witness[-1].state
    kept.save(state)
    assert list(tmp_path.iterdir()) == []
    kept.save(state, whole=True)
    assert set(kept.onto(replace(state, audit_records={})).audit_records) == {4}
