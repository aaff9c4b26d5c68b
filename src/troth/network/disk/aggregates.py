"""Aggregates of the steps since the last saved model of a large run: with both, a peer makes its model again (SPEC B6).

Large models are saved now and then. If all members lost power in between, nobody could hand out the model after the last record;
but each update is a pure function of the model before it and the aggregate, and the records prove every aggregate.
"""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from io import FileIO
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from troth.crypto import CHUNK_BYTES, Digest
from troth.files import read_into, write_bytes
from troth.network.disk.step_files import step_files
from troth.protocol.broadcast.outside.catch_up_server import Served
from troth.protocol.core.parts import Bounds, part_bounds
from troth.protocol.core.records import StepRecord, aggregates_digest
from troth.protocol.core.state import State
from troth.protocol.recovery.aggregates import served_aggregate
from troth.protocol.wire.blob import Blob, digest_all
from troth.training.work import Training

# D coordinates


class AggregateFiles:
    """One file of 4·D bytes for each step since the last saved model, written beside the next step."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._size = size  # D
        self._since = self._next = 0  # the files reach from a saved model, or the first, to the step before `_next`
        self._models: dict[int, Digest] = {}  # digests of the states that they lead to, by the step that begins there
        self._named: dict[Digest, tuple[int, Bounds]] = {}  # steps and parts, by the aggregate's digest in its record
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="aggregates")
        self._written: Future[None] | None = None

    def add(self, state: State[Training]) -> bool:
        """Write the aggregate of the step before this state. False if it does not continue the files: the model must be saved."""
        self.wait()
        record = None if state.last is None else state.last.record
        if record is None or not self._since <= record.step <= self._next:
            return False
        if self._models.get(record.step, record.state_before) != record.state_before:
            return False  # the files hold a step that was discarded, and made again
        kept = state.audit_records.get(record.step)
        if kept is not None:
            numbers = Blob.of(kept.aggregate_D).view  # without an update too: audits need it (SPEC K1)
            self._written = self._thread.submit(write_bytes, self._path(record.step), numbers)
            self._named = {name: one for name, one in self._named.items() if one[0] != record.step}
            self._named[Digest(record.aggregates)] = record.step, kept.bounds
        elif record.updated:
            return False
        self._next = record.step + 1
        self._models[self._next] = state.model
        return True

    def saved(self, state: State[Training]) -> None:
        """Begin anew from this state, whose model has been saved."""
        self._since = self._next = state.step
        self._models = {state.step: state.model}

    def prune(self, base: int) -> None:
        """Delete files from before this step, at which a model was saved, since nobody can need an earlier one."""
        for step, path in step_files(self._folder, "aggregate").items():
            if step < base:
                path.unlink()
        self._named = {name: one for name, one in self._named.items() if one[0] >= base}

    def wait(self) -> None:
        """Wait until everything is on disk. Raises OSError if it could not be written."""
        if self._written is not None:
            written, self._written = self._written, None
            written.result()

    def read(self, record: StepRecord) -> Tensor | None:
        """The aggregate of a step, if it is here and is the one that the record names."""
        found = self.read_parts(record.step, part_bounds(self._size, record.parts))
        if found is None or aggregates_digest(blob.digest for blob in found[1]) != record.aggregates:
            return None
        return found[0]

    def read_parts(self, step: int, bounds: Bounds) -> tuple[Tensor, tuple[Blob, ...]] | None:
        """The aggregate of a step, if there is one, and its parts with their digests; nothing is checked but its length."""
        aggregate_D = torch.empty(self._size, dtype=torch.float32)
        try:
            with FileIO(self._path(step)) as file:  # not mapped: it may be written over once its digests were checked
                whole = os.fstat(file.fileno()).st_size == 4 * self._size == 4 * bounds[-1]
                if not whole or not read_into(file, aggregate_D.numpy().data.cast("B")):
                    return None
        except FileNotFoundError:
            return None
        blobs = Blob.cut(aggregate_D, bounds)
        digest_all(blobs)
        return aggregate_D, blobs

    def served(self, digest: Digest) -> Served | None:
        """An aggregate for peers that catch up, read as they ask for it (SPEC J2). They check it: a disk that failed costs them
        a chunk. None once its file is gone."""
        if digest not in self._named:
            return None
        step, bounds = self._named[digest]
        if not self._path(step).exists():
            return None
        return Served(partial(self._index, step, bounds), partial(_chunk_of, self._path(step), bounds))

    def _index(self, step: int, bounds: Bounds) -> bytes:
        found = self.read_parts(step, bounds)
        return b"" if found is None else served_aggregate(found[0], bounds).index

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:09}.aggregate"


def _chunk_of(path: Path, bounds: Bounds, number: int) -> memoryview | None:
    """A chunk of the aggregate in a file, without the rest of it: what `served_aggregate` gives by the same number."""
    for start, stop in pairwise(bounds):
        chunks = -(-4 * (stop - start) // CHUNK_BYTES)
        if number < chunks:
            at = 4 * start + number * CHUNK_BYTES
            length = min(CHUNK_BYTES, 4 * stop - at)
            with suppress(OSError), FileIO(path) as file:
                raw = os.pread(file.fileno(), length, at)
                return memoryview(raw) if len(raw) == length else None
            return None
        number -= chunks
    return None
