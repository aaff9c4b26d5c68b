"""Aggregates of the last steps, kept and handed out in chunks: whoever has an earlier model makes the updates (SPEC J2)."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from troth.crypto import Digest
from troth.protocol.broadcast.outside.catch_up_server import Served
from troth.protocol.core.channel import Work
from troth.protocol.core.parts import Bounds, part_bounds
from troth.protocol.core.records import StepRecord, aggregates_digest
from troth.protocol.core.state import State
from troth.protocol.wire.chunks import CollectedVectors, VectorIndex, chunk_of, decode_index, encode_index, index_of
from troth.protocol.wire.messages import Malformed
from troth.protocol.wire.primitives import Primitives

T = TypeVar("T")

# D coordinates

_IN_AUDIT_RECORDS = 2  # aggregates that are there anyway (SPEC K1)
_LEAST_KEPT = 8  # of a model whose contents are named in every step: a state is as long as three aggregates, or fewer
_MOST_KEPT = 64
_KEPT_BYTES = 1 << 26


def most_kept(size: int, content_every: int) -> int:
    """How many of the last steps' aggregates of so many numbers every member keeps for others: as many as fit into memory, and
    where contents are named seldom, on disk, those since the last of them. A newcomer whose link is quick enough to be a member
    is never as far behind when it has the state."""
    return max(_in_memory(size, content_every), content_every, _IN_AUDIT_RECORDS)


def _in_memory(size: int, content_every: int) -> int:
    least = (
        _LEAST_KEPT if content_every == 1 else 0
    )  # of a large model none: those of audit records, and on disk, have to do
    return max(least, min(_MOST_KEPT, _KEPT_BYTES // (4 * size)))


class KeptAggregates:
    """Aggregates of the last steps at one member."""

    def __init__(self, size: int, content_every: int) -> None:
        self._most = _in_memory(size, content_every)
        self._kept: dict[Digest, Served] = {}

    def add(self, states: Sequence[State[T]]) -> None:
        """Keep the aggregates that led to these states."""
        self._kept |= {digest: served for digest, served in self._of(states).items() if digest not in self._kept}
        while len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]

    def served(self, states: Sequence[State[T]]) -> Mapping[Digest, Served]:
        """All that is kept, and the aggregates that led to these states, by the digest in their record."""
        return self._of(states) | self._kept

    def _of(self, states: Sequence[State[T]]) -> dict[Digest, Served]:
        found = {}
        for state in states:
            record = None if state.last is None else state.last.record
            kept = None if record is None else state.audit_records.get(record.step)
            if record is not None and record.updated and kept is not None:
                found[Digest(record.aggregates)] = served_aggregate(kept.aggregate_D, kept.bounds)
        return found


def served_aggregate(aggregate_D: Tensor, bounds: Bounds) -> Served:
    """An aggregate as a member hands it out."""
    return Served(partial(_index, aggregate_D, bounds), lambda number: chunk_of(_parts(aggregate_D, bounds), number))


def _index(aggregate_D: Tensor, bounds: Bounds) -> bytes:
    return encode_index(index_of(_parts(aggregate_D, bounds)))


def _parts(aggregate_D: Tensor, bounds: Bounds) -> dict[str, Tensor]:
    """The parts, by names in their order."""
    return {f"{part:04}": aggregate_D[start:stop] for part, (start, stop) in enumerate(pairwise(bounds))}


class CollectedAggregate(CollectedVectors):
    """An aggregate of which chunks come one by one, from anybody."""

    def __init__(self, index: tuple[VectorIndex, ...], bounds: Bounds) -> None:
        self._aggregate_D = torch.empty(bounds[-1])
        parts = _parts(self._aggregate_D, bounds)
        super().__init__(index, {one.name: part_D for one, part_D in zip(index, parts.values(), strict=True)})

    @classmethod
    def of(cls, record: StepRecord, size: int, raw: bytes) -> "CollectedAggregate | Malformed":
        """Begin to collect the aggregate that a record names, if this is its index."""
        index = decode_index(raw)
        if isinstance(index, Malformed):
            return index
        bounds = part_bounds(size, record.parts)
        if [(one.dtype, one.count) for one in index] != [("torch.float32", b - a) for a, b in pairwise(bounds)]:
            return Malformed("other parts than the aggregate has")
        if aggregates_digest(one.digest for one in index) != record.aggregates:
            return Malformed("the index of another aggregate")
        return cls(index, bounds)

    def state(self) -> Tensor:
        assert not self.missing
        return self._aggregate_D


def updated(work: Work[T], tools: Primitives, training: T, record: StepRecord, aggregate_D: Tensor) -> T:
    """The model after the update that a record tells of, made again from the one before and its aggregate (SPEC U1, U3)."""
    return work.update(training, tools.scaled(aggregate_D, record.factor), record.updates - 1)


def way_from(models: Mapping[Digest, T], records: Sequence[StepRecord]) -> tuple[T, Sequence[StepRecord]] | None:
    """The latest model that is here and on the way of these records, and those that lead from there to their end."""
    for first in reversed(range(len(records))):
        before = Digest(records[first].state_before)
        if before in models:
            return models[before], records[first:]
    return None
