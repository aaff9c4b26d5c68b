"""Files of a step that was discarded and made again, of one without an update, and with flipped bits (SPEC B2, B6, K1)."""

import dataclasses
from functools import cache
from pathlib import Path

import msgspec
import pytest

from tests.network.disk.test_audit_records import bare_files, files_of_five_steps, world
from tests.protocol.scripted_world import plan, run_world
from troth.network.disk.checkpoints import AggregateFiles, Checkpoints
from troth.protocol.core.state import State
from troth.training.work import Training
from troth.workshop.simulation.exchange import DropOut

DISCARDED = 2  # the step that others made again, without one member


def _states() -> list[State[Training]]:
    return [outcome.state for outcome in world().witness]


@cache
def _others() -> tuple[State[Training], ...]:
    """States of the same run from the discarded step on, as it was made again."""
    made = run_world(plan(liars=(), steps=8, crashes={4: DropOut(DISCARDED, 1, None)})).world
    found = tuple(outcome.state for outcome in made.witness)
    assert made.run.id == world().run.id
    assert [state.model for state in found[:2]] == [state.model for state in _states()[:2]]
    assert found[DISCARDED].model != _states()[DISCARDED].model
    return found


def test_aggregates_of_a_discarded_step_do_not_count(tmp_path: Path) -> None:
    """[B6] Else no model would be saved, and after a power cut none could be made."""
    files = AggregateFiles(tmp_path, world().run.parameters.size)
    assert all(files.add(state) for state in _states()[: DISCARDED + 1])
    assert not files.add(_others()[DISCARDED + 1]), "it goes on from another state"
    files.saved(_others()[DISCARDED + 1])
    assert files.add(_others()[DISCARDED + 2])
    files.wait()


def test_a_step_that_is_made_again_replaces_its_aggregate(tmp_path: Path) -> None:
    """[B6] This peer took part in it both times."""
    files = AggregateFiles(tmp_path, world().run.parameters.size)
    assert all(files.add(state) for state in _states()[: DISCARDED + 1])
    assert all(files.add(state) for state in _others()[DISCARDED:])
    files.wait()
    last = _others()[DISCARDED].last
    assert last is not None
    assert files.read(last.record) is not None


def test_states_and_audit_records_of_a_discarded_step_are_passed_over(tmp_path: Path) -> None:
    """[B2, K1] A juror with another Commit in hand would vote an honest accuser guilty."""
    checkpoints, (files, _) = Checkpoints(tmp_path, world().run.id, world().work), bare_files(tmp_path)
    for state in _states()[: DISCARDED + 1]:
        files.save(state)
        checkpoints.save(state)
    after = _others()[DISCARDED + 1]
    observed = dataclasses.replace(after, audit_records={DISCARDED + 1: after.audit_records[DISCARDED + 1]})
    files.save(observed)
    checkpoints.save(observed)
    found = checkpoints.last(_states()[0])
    assert (found.state.step, found.past) == (observed.step, ())
    right = _others()[DISCARDED]
    assert set(files.onto(found.state, [right]).audit_records) <= {DISCARDED + 1}


def test_the_aggregate_of_a_step_without_an_update_is_kept_for_audits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[K1, B6] These are the steps that everyone has to audit (G2)."""
    monkeypatch.setattr("troth.network.disk.checkpoints._SMALL", 0)
    files, aggregates = bare_files(tmp_path)
    *before, last = _states()
    assert last.last is not None
    record = msgspec.structs.replace(last.last.record, updated=False, state_after=before[-1].model, content=True)
    last = dataclasses.replace(last, training=before[-1].training, last=dataclasses.replace(last.last, record=record))
    for state in (*before, last):
        files.save(state)
        assert aggregates.add(state)
    aggregates.wait()
    bare = dataclasses.replace(last, audit_records={})
    assert set(files.onto(bare, before).audit_records) == set(last.audit_records)


@pytest.mark.parametrize("field", ["aggregate", "seed", "projection key", "commit"])
def test_a_flipped_bit_in_an_audit_record_is_found(tmp_path: Path, field: str) -> None:
    """[K1] With any of these changed, an honest auditor would accuse honest members, and be banned for it."""
    files, bare = files_of_five_steps(tmp_path)
    path, right = tmp_path / "step-000000004.audit", files.onto(bare).audit_records[4]
    whole = path.read_bytes()
    places = {
        "aggregate": right.aggregate_D.numpy().tobytes(),
        "seed": right.seed_randomness,
        "projection key": right.projection_key,
        "commit": next(iter(right.commits.values())).envelope.payload,
    }
    at = whole.index(places[field]) + 2
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert set(files.onto(bare).audit_records) == {3}
