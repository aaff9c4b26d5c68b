"""Aggregates in chunks: whoever has the model before them makes the updates itself, and nobody can slip it another (SPEC J2)."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from tests.protocol.small_runs import SMALL, finished, records
from troth.crypto import CHUNK_BYTES, Digest
from troth.protocol.core.parts import part_bounds
from troth.protocol.core.records import StepRecord, aggregates_digest
from troth.protocol.core.run import Parameters
from troth.protocol.core.state import LastRecord, State
from troth.protocol.recovery.models import (
    CollectedAggregate,
    KeptAggregates,
    most_kept,
    served_aggregate,
    updated,
    way_from,
)
from troth.protocol.wire.blob import Blob, VectorIndex, decode_index, encode_index
from troth.protocol.wire.messages import Malformed
from troth.protocol.wire.primitives import Primitives
from troth.workshop.simulation import ProtocolSimulation

SIZE, PARTS = 3 * CHUNK_BYTES // 4 + 5, 2  # of two parts, each of two chunks
BOUNDS = part_bounds(SIZE, PARTS)


@pytest.fixture(scope="module")
def ended() -> ProtocolSimulation:
    return finished(replace(SMALL, attack="sign-flip"))


@pytest.fixture(scope="module")
def record(ended: ProtocolSimulation) -> StepRecord:
    """A record of the aggregate 0, 1, 2 …"""
    digests = [blob.digest for blob in Blob.cut(numbers_D(), BOUNDS)]
    return msgspec.structs.replace(records(ended)[1], parts=PARTS, aggregates=aggregates_digest(digests))


def numbers_D() -> torch.Tensor:  # noqa: N802  # shapes are in the names
    return torch.arange(SIZE, dtype=torch.float32)


def test_what_is_handed_out_is_what_comes(record: StepRecord) -> None:
    """[J2]"""
    served = served_aggregate(numbers_D(), BOUNDS)
    collected = CollectedAggregate.of(record, SIZE, served.index)
    assert not isinstance(collected, Malformed)
    assert len(collected.missing) == 4
    for number in sorted(collected.missing, reverse=True):
        chunk = served.chunk(number)
        assert chunk is not None
        assert not collected.put(number, memoryview(bytes(len(chunk)))), "zeros"
        assert collected.put(number, chunk)
    assert torch.equal(collected.state(), numbers_D())


def _index(**changes: Any) -> bytes:
    index = decode_index(served_aggregate(numbers_D(), BOUNDS).index)
    assert not isinstance(index, Malformed)
    return encode_index((msgspec.structs.replace(index[0], **changes), *index[1:]))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        served_aggregate(numbers_D() + 1, BOUNDS).index,
        served_aggregate(numbers_D(), part_bounds(SIZE, 3)).index,
        served_aggregate(numbers_D()[:-1], part_bounds(SIZE - 1, 2)).index,
        _index(dtype="torch.float64", count=BOUNDS[1] // 2),
        encode_index((VectorIndex("0000", "torch.float32", 1 << 39, ()),)),
        encode_index(()),
    ],
    ids=["nothing", "other numbers", "other parts", "another length", "other numbers' format", "too long", "no vector"],
)
def test_another_index_is_refused_before_anything_is_set_aside_for_it(record: StepRecord, raw: bytes) -> None:
    """[J2]"""
    assert isinstance(CollectedAggregate.of(record, SIZE, raw), Malformed)
    assert not isinstance(CollectedAggregate.of(record, SIZE, _index()), Malformed)


def test_updates_made_again_lead_to_the_same_model(ended: ProtocolSimulation) -> None:
    """[J2, U1] Whatever was clipped or left out on the way."""
    peer, made = ended.peers[ended.honest[0]], records(ended)
    kept = ended.states[ended.honest[0]].audit_records
    last = max(step for step in kept if made[step].updated)
    training = updated(peer.work, Primitives(), kept[last].training, made[last], kept[last].aggregate_D)
    assert peer.work.digest(training) == made[last].state_after


def test_the_way_begins_at_the_latest_model_that_is_here(ended: ProtocolSimulation) -> None:
    """[J2]"""
    made = records(ended)[:5]
    models = {Digest(made[step].state_before): step for step in (1, 3)}
    assert way_from(models, made) == (3, made[3:])
    assert way_from(models, made[:2]) == (1, made[1:2])
    assert way_from({Digest(bytes(32)): 0}, made) is None
    assert way_from(models, ()) is None


@pytest.mark.parametrize(
    ("size", "every", "most"),
    [(1, 1, 64), (1 << 18, 1, 64), (1 << 20, 1, 16), (1 << 22, 1, 8), (1 << 24, 16, 16), (10**9, 16, 16), (1, 20, 64)],
)
def test_how_many_are_kept_follows_from_the_run(size: int, every: int, most: int) -> None:
    """[J2] Who asks knows what there is."""
    assert most_kept(size, every) == most


def test_aggregates_are_kept_for_a_bounded_time(ended: ProtocolSimulation) -> None:
    """[J2] Of large ones none in memory beside those of the audit records."""
    last = ended.states[ended.honest[0]]
    kept = max(last.audit_records)
    states = [_after(last, kept, number) for number in range(100)]
    small, large = (
        KeptAggregates(Parameters(1 << power, 1.0, 0, content_every=every)) for power, every in ((20, 1), (26, 16))
    )
    for state in states:
        small.add([state])
        large.add([state])
    named = [Digest(state.last.record.aggregates) for state in states if state.last is not None]
    assert list(small.served([])) == named[-16:]
    assert list(large.served([])) == []
    assert list(large.served(states[-1:])) == named[-1:]


def _after(state: State[Any], step: int, number: int) -> State[Any]:
    assert state.last is not None
    made = msgspec.structs.replace(state.last.record, step=step, updated=True, aggregates=bytes([number]) * 32)
    return replace(state, last=LastRecord(made, state.last.digest, 1, {}))
