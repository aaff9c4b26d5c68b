"""Models that nobody saved, made again from the aggregates since an earlier one (SPEC B6, U1)."""

from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.network.disk.test_audit_records import world
from troth.crypto import CHUNK_BYTES, Digest
from troth.network.disk.checkpoints import AggregateFiles, Base, Replay, _chunk_of
from troth.protocol.core.records import StepRecord
from troth.protocol.core.state import State
from troth.protocol.recovery.models import served_aggregate
from troth.training.work import Training

STATES = [outcome.state for outcome in world().witness if not outcome.record.closing]
RECORDS = {outcome.record.step: outcome.record for outcome in world().witness}


def nothing(_training: Training) -> None:
    pass


def first() -> Base:
    kept = STATES[0].audit_records[0]
    return Base(0, kept.training, kept.model)


def written(folder: Path) -> AggregateFiles:
    files = AggregateFiles(folder, world().run.parameters.size)
    assert all(files.add(state) for state in STATES)
    files.wait()
    return files


def replayed(files: AggregateFiles, state: State[Training], records: dict[int, StepRecord] = RECORDS) -> bool:
    """Whether the model comes out right; None is the other way to end."""
    found = Replay(world().work, files, nothing)(state.step, state.model, records, first)
    assert found is None or world().work.digest(found) == world().work.digest(state.training)
    return found is not None


def test_every_model_is_made_again_from_the_first(tmp_path: Path) -> None:
    files = written(tmp_path)
    assert all(replayed(files, state) for state in STATES)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{k:09}.aggregate" for k in range(len(STATES))]


def test_the_two_states_before_the_last_one_are_at_hand(tmp_path: Path) -> None:
    """[B2, B6] A peer goes back by a step if its last record is not certified, and audits the one before."""
    rested: list[Training] = []
    replay, (earlier, before, last) = Replay(world().work, written(tmp_path), rested.append), STATES[-3:]
    assert replay(last.step, last.model, RECORDS, first) is not None

    def not_again() -> Base:
        raise AssertionError

    for state in (before, earlier):
        found = replay(state.step, state.model, RECORDS, not_again)
        assert found is not None
        assert world().work.digest(found) == world().work.digest(state.training)
        assert any(found is one for one in rested)


def test_nothing_is_made_from_a_damaged_or_missing_aggregate_or_other_records(tmp_path: Path) -> None:
    """A model that is not the one would make this peer a liar."""
    files, last = written(tmp_path), STATES[-1]
    path = tmp_path / "step-000000002.aggregate"
    whole = path.read_bytes()
    for damaged in (whole[:-4], whole + bytes(4), whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        path.write_bytes(damaged)
        assert not replayed(files, last)
        assert replayed(files, STATES[1]), "as far as the files are whole"
    path.unlink()
    assert not replayed(files, last)
    path.write_bytes(whole)
    assert replayed(files, last)
    assert not replayed(files, last, {step: one for step, one in RECORDS.items() if step != 1})
    other = replace(last, model=Digest(bytes(32)))
    assert not replayed(files, other)


def test_aggregates_on_disk_are_handed_out_like_those_in_memory(tmp_path: Path) -> None:
    """[J2] Index and every chunk, until their file is deleted; a file that was cut gives nothing."""
    files = written(tmp_path)
    for state in (state for state in STATES if state.last is not None and state.last.record.updated):
        assert state.last is not None
        record, kept = state.last.record, state.audit_records[state.last.record.step]
        in_memory, on_disk = served_aggregate(kept.aggregate_D, kept.bounds), files.served(Digest(record.aggregates))
        assert on_disk is not None
        assert on_disk.index == in_memory.index
        assert [on_disk.chunk(number) for number in range(9)] == [in_memory.chunk(number) for number in range(9)]
    assert files.served(Digest(bytes(32))) is None
    assert on_disk is not None
    path = tmp_path / f"step-{record.step:09}.aggregate"
    path.write_bytes(path.read_bytes()[:-1])
    assert on_disk.chunk(len(kept.bounds) - 2) is None
    files.prune(STATES[-1].step)
    assert files.served(Digest(record.aggregates)) is None
    assert on_disk.chunk(0) is None


@given(st.lists(st.integers(1, 3 * CHUNK_BYTES // 8), min_size=1, max_size=4), st.integers(0, 9))
def test_a_chunk_is_read_without_the_rest_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, parts: list[int], number: int
) -> None:
    """[J2] The same bytes as those of the vector in memory, however it is cut."""
    bounds = tuple(accumulate(parts, initial=0))
    aggregate_D = torch.arange(bounds[-1], dtype=torch.float32)
    path = tmp_path_factory.mktemp("aggregate") / "file"
    path.write_bytes(aggregate_D.numpy().tobytes())
    places = [4 * bound for bound in bounds]
    assert _chunk_of(path, places, number) == served_aggregate(aggregate_D, bounds).chunk(number)


def test_a_gap_asks_for_the_model(tmp_path: Path) -> None:
    """A peer that came back lacks the aggregates of the steps that it missed."""
    files = AggregateFiles(tmp_path, world().run.parameters.size)
    assert files.add(STATES[0])
    assert not files.add(STATES[2])
    files.saved(STATES[2])
    assert files.add(STATES[3])
    assert files.add(replace(STATES[3])), "a step that a restart made again"
    assert not files.add(STATES[1]), "from before the saved model"


def test_aggregates_before_a_saved_model_go_when_nobody_needs_an_earlier_one(tmp_path: Path) -> None:
    """Files with other names are not ours."""
    files, other = written(tmp_path), tmp_path / "step-1 (copy).aggregate"
    other.touch()
    files.prune(0)
    assert len(list(tmp_path.iterdir())) == len(STATES) + 1
    files.prune(STATES[2].step)
    other.unlink()
    steps = sorted(int(path.stem.removeprefix("step-")) for path in tmp_path.iterdir())
    assert steps == list(range(STATES[2].step, len(STATES)))


def test_a_disk_that_fails_is_noticed_before_a_record_counts(tmp_path: Path) -> None:
    files = AggregateFiles(tmp_path / "gone", world().run.parameters.size)
    assert files.add(STATES[0])
    with pytest.raises(OSError, match="No such file"):
        files.wait()
