"""The model that records lead to: fetched by its content, then led on by the aggregates of the steps since (SPEC J1, J2).

A run goes on while a peer downloads, and a model that has come is some steps old. So a peer takes the cheapest way, in bytes,
from a model that is here or a content that members hand out, by the aggregates since.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from torch import Tensor

from troth.crypto import CHUNK_BYTES, Digest, PeerId, Slot
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.core.channel import Collected
from troth.protocol.core.records import StepRecord
from troth.protocol.core.state import Peer
from troth.protocol.recovery.aggregates import CollectedAggregate, most_kept, updated, way_from
from troth.protocol.recovery.download import NO_KEPT_CHUNKS, Download, Fetched, KeptChunks
from troth.protocol.recovery.ledger import Ledger
from troth.protocol.wire.frames import Answer
from troth.protocol.wire.messages import Malformed, Phase

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


class Models(Generic[T]):
    """Leads a peer to a model, in one attempt to catch up over one channel."""

    def __init__(
        self,
        peer: Peer[T],
        ledger: Ledger[T],
        channel: BroadcastChannel,
        downloads: Downloads[T],
        hear: Callable[[PeerId, Answer], None],  # answers about something else
    ) -> None:
        self._peer = peer
        self._ledger = ledger
        self._channel = channel
        self._downloads = downloads
        self._hear = hear
        self._useless: set[Digest] = set()  # models from which no way led on, and contents that nobody hands out
        parameters = peer.run.parameters
        self._most = most_kept(parameters.size, parameters.content_every)

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
        return max(CHUNK_BYTES, 4 * self._peer.run.parameters.size) * sum(record.updated for record in records)

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
        peer, size, downloads = self._peer, self._peer.run.parameters.size, self._downloads
        for number, record in enumerate(records):
            downloads.reached(model, training)
            downloads.told(StepsLeft(len(records) - number))
            if record.updated:
                collect = partial(CollectedAggregate.of, record, size)
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
