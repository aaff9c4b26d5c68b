"""The model that records lead to: fetched by its content, then led on by the aggregates of the steps since (SPEC J1, J2).

A run goes on while a peer downloads, and a model that has come is some steps old. So a peer takes the cheapest way, in bytes,
from a model that is here or a content that members hand out, by the aggregates since.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from troth.clip.blocks import PLAIN, Code
from troth.crypto import CHUNK_BYTES, Digest, PeerId, Slot
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.serving import Served
from troth.protocol.core.channel import Collected, Work
from troth.protocol.core.parts import Bounds, part_bounds
from troth.protocol.core.records import StepRecord, aggregates_digest
from troth.protocol.core.run import Parameters
from troth.protocol.core.state import Peer, State
from troth.protocol.recovery.download import NO_KEPT_CHUNKS, Download, Fetched, KeptChunks
from troth.protocol.recovery.ledger import Ledger
from troth.protocol.wire.blob import CollectedVectors, VectorIndex, chunk_of, decode_index, encode_index, index_of
from troth.protocol.wire.frames import Answer
from troth.protocol.wire.messages import Malformed, Phase
from troth.protocol.wire.primitives import Primitives

T = TypeVar("T")
R = TypeVar("R")
_RATHER_ONWARD = 2  # a model that is here is left for a content if that costs less than this part of its aggregates


@dataclass(frozen=True)
class StepsLeft:
    """Updates that this peer still has to make again, as far as it knows."""

    count: int


@dataclass
class Downloads(Generic[T]):
    """What a peer has fetched of the model that it lacks. It outlasts an attempt to catch up, and what is kept the process."""

    kept: KeptChunks = NO_KEPT_CHUNKS
    told: Callable[[Fetched | StepsLeft], None] = lambda _how_far: None
    states: dict[Digest, Download[T]] = field(default_factory=dict)  # begun and not complete: one at most
    complete: Digest | None = None  # the last one that came
    aggregates: dict[Digest, Download[Any]] = field(default_factory=dict)  # begun and not complete: one at most
    models: dict[Digest, T] = field(default_factory=dict)  # the one that came, led on so far; by its name in records

    @property
    def begun(self) -> Digest | None:
        """The state that this process has begun to fetch and not completed, or an earlier one."""
        return next(iter(self.states), None if self.kept.begun == self.complete else self.kept.begun)

    def of(self, digest: Digest, collect: Callable[[bytes], Collected[T] | Malformed]) -> Download[T]:
        """The download of this state, and of no other."""
        if digest not in self.states:
            self.states = {digest: Download(digest, collect, self.kept, self.told)}
            self.states[digest].recall()
        return self.states[digest]

    def completed(self, digest: Digest) -> None:
        self.states, self.complete = {}, digest

    def reached(self, model: Digest, training: T) -> None:
        self.models = {model: training}

    def forget(self) -> None:
        """This peer has its model."""
        self.states, self.aggregates, self.models = {}, {}, {}


@dataclass(frozen=True)
class _Way(Generic[T]):
    """A way to the model after some records: from a model, or a content that is to be fetched, by the updates of the rest."""

    start: T | None  # the model, if it is here
    model: Digest  # its name in records
    rest: Sequence[StepRecord]
    length: int  # bytes to fetch


@dataclass(eq=False)
class Models(Generic[T]):
    """Leads a peer to a model, in one attempt to catch up over one channel."""

    _peer: Peer[T]
    _ledger: Ledger[T]
    _channel: BroadcastChannel
    _downloads: Downloads[T]
    _hear: Callable[[PeerId, Answer], None]  # answers about something else
    # Models from which no way led on, and contents that nobody hands out.
    _useless: set[Digest] = field(default_factory=set)

    @property
    def _most(self) -> int:
        """Aggregates that members keep."""
        parameters = self._peer.run.parameters
        return most_kept(parameters.size, parameters.content_every)

    async def reach(self, backers: Sequence[PeerId], digest: Digest, records: Sequence[StepRecord]) -> T | None:
        """The model with this digest, to which these records lead, with the help of these members; None if that failed."""
        state = self._ledger.state
        if self._ledger.lacks is None and state.model == digest:
            return state.training
        way = self.way(records) if records else _Way[T](None, digest, (), 0)
        if way is None:
            return None
        training = await self._fetch_state(backers, way.model) if way.start is None else way.start
        if training is None:
            return None
        return await self._replay(backers, way.model, training, way.rest)

    def way(self, records: Sequence[StepRecord]) -> _Way[T] | None:
        """The cheapest way to the model after the last record; None if one of the next has to name its content (SPEC U5)."""
        onward, contents = self._onward(records), [way for way in self._contents(records) if way is not None]
        content = min(contents, key=lambda way: way.length, default=None)
        if onward is None or content is None:
            return onward or content
        return content if _RATHER_ONWARD * content.length < onward.length else onward

    def _onward(self, records: Sequence[StepRecord]) -> _Way[T] | None:
        """From a model that is here, if members keep all aggregates since."""
        ledger = self._ledger
        here = {state.model: state.training for state in (*ledger.past, ledger.state)} | self._downloads.models
        way = way_from({model: training for model, training in here.items() if model not in self._useless}, records)
        if way is None or len(way[1]) > self._most:
            return None
        training, rest = way
        return _Way(training, Digest(rest[0].state_before), rest, self._bytes(rest))

    def _contents(self, records: Sequence[StepRecord]) -> Iterator[_Way[T] | None]:
        """From the content that the last record names, or from one that this peer has begun to fetch."""
        begun, last = self._downloads.begun, records[-1]
        place = next((k for k, one in enumerate(records) if one.content and one.state_after == begun), None)
        if place is not None and begun is not None and begun not in self._useless and begun != last.state_after:
            rest, missing = records[place + 1 :], self._download(begun).missing
            if missing is not None and len(rest) <= self._most:
                yield _Way(None, begun, rest, missing + self._bytes(rest))
        if last.content:
            missing = self._download(begun).missing if begun == last.state_after else None
            yield _Way(None, Digest(last.state_after), (), self._length() if missing is None else missing)

    def _download(self, digest: Digest) -> Download[T]:
        return self._downloads.of(digest, partial(self._peer.work.collect, digest=digest))

    def _length(self) -> int:
        """Of every state of this run. Less than a chunk counts as one: it takes a question and an answer, and steps go on."""
        return max(CHUNK_BYTES, self._peer.work.length(self._ledger.state.training))

    def _bytes(self, records: Sequence[StepRecord]) -> int:
        """Of these records' aggregates."""
        length = self._peer.code.centers.length(self._peer.run.parameters.size)
        return max(CHUNK_BYTES, length) * sum(record.updated for record in records)

    async def _fetch_state(self, backers: Sequence[PeerId], digest: Digest) -> T | None:
        """Fetch a state in chunks from several of these members; what has come is kept for another attempt."""
        download = self._download(digest)
        training = await self._run(backers, download)
        if training is not None:
            self._downloads.completed(digest)
        elif not download.found:
            self._useless.add(digest)  # until another attempt: the run has left it behind
        return training

    async def _replay(
        self, backers: Sequence[PeerId], model: Digest, training: T, records: Sequence[StepRecord]
    ) -> T | None:
        """Make these updates, each from its aggregate. A content on the way shows whether this peer's memory failed."""
        peer, parameters, downloads = self._peer, self._peer.run.parameters, self._downloads
        for number, record in enumerate(records):
            downloads.reached(model, training)
            downloads.told(StepsLeft(len(records) - number))
            if record.updated:
                collect = partial(CollectedAggregate.of, record, parameters.size, code=peer.code)
                aggregate_D = await self._fetch_aggregate(backers, model, Digest(record.aggregates), collect)
                if aggregate_D is None:
                    return None
                training = updated(peer.work, peer.tools, training, record, aggregate_D)
            model = Digest(record.state_after)
            if record.content and peer.work.digest(training) != model:
                self._useless |= {Digest(one.state_before) for one in records[: number + 1]}
                return None
        downloads.reached(model, training)
        return training

    async def _fetch_aggregate(
        self,
        backers: Sequence[PeerId],
        model: Digest,
        digest: Digest,
        collect: Callable[[bytes], Collected[Tensor] | Malformed],
    ) -> Tensor | None:
        """Fetch the aggregate that leads on from this model."""
        download = self._downloads.aggregates.get(digest) or Download(digest, collect)
        self._downloads.aggregates = {digest: download}
        found: Tensor | None = await self._run(backers, download)
        if found is not None:
            self._downloads.aggregates = {}
        elif not download.found:
            self._useless.add(model)  # until another attempt: nobody keeps it any more
        return found

    async def _run(self, backers: Sequence[PeerId], download: Download[R]) -> R | None:
        slot = Slot(self._peer.run.id, self._ledger.state.step, Phase.REJOIN)
        return await download.run(self._channel, slot, backers, self._hear)


# Aggregates of the last steps, kept and handed out in chunks: whoever has an earlier model makes the updates (SPEC J2).


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
    least = _LEAST_KEPT if content_every == 1 else 0  # of a large model those of audit records, and on disk, have to do
    return max(least, min(_MOST_KEPT, _KEPT_BYTES // (4 * size)))


class KeptAggregates:
    """Aggregates of the last steps at one member."""

    def __init__(self, parameters: Parameters) -> None:
        self._code = parameters.coding
        self._most = _in_memory(parameters.size, parameters.content_every)
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
                found[Digest(record.aggregates)] = served_aggregate(kept.aggregate_D, kept.bounds, self._code)
        return found


def served_aggregate(aggregate_D: Tensor, bounds: Bounds, code: Code = PLAIN) -> Served:
    """An aggregate as a member hands it out: its parts in the run's code."""
    parts = cache(lambda: _parts(code.centers.stored(aggregate_D), bounds, code))
    return Served(lambda: encode_index(index_of(parts())), lambda number: chunk_of(parts(), number))


def _parts(stored: Tensor, bounds: Bounds, code: Code) -> dict[str, Tensor]:
    """The parts of an aggregate, by names in their order."""
    places = map(code.centers.place, bounds)
    return {f"{part:04}": stored[start:stop] for part, (start, stop) in enumerate(pairwise(places))}


class CollectedAggregate(CollectedVectors):
    """An aggregate of which chunks come one by one, from anybody."""

    def __init__(self, index: tuple[VectorIndex, ...], stored: Tensor, parts: Mapping[str, Tensor], code: Code) -> None:
        super().__init__(index, {one.name: part for one, part in zip(index, parts.values(), strict=True)})
        self._stored = stored
        self._form = code.centers

    @classmethod
    def of(cls, record: StepRecord, size: int, raw: bytes, code: Code = PLAIN) -> "CollectedAggregate | Malformed":
        """Begin to collect the aggregate that a record names, if this is its index."""
        index = decode_index(raw)
        if isinstance(index, Malformed):
            return index
        stored = code.centers.stored(torch.zeros(size))
        parts = _parts(stored, part_bounds(size, record.parts, code), code)
        if [(one.dtype, one.count) for one in index] != [(str(part.dtype), len(part)) for part in parts.values()]:
            return Malformed("other parts than the aggregate has")
        if aggregates_digest(one.digest for one in index) != record.aggregates:
            return Malformed("the index of another aggregate")
        return cls(index, stored, parts, code)

    def state(self) -> Tensor:
        assert not self.missing
        numbers_D = self._form.read(self._stored)
        assert numbers_D is not None, "a quorum looked at the parts before it signed for them"
        return numbers_D


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
