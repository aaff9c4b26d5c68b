"""Checkpoints: the state of a peer on disk, from which it finds its way back.

Each has two files: `step-N.json` is the state without the model, `step-N.safetensors` holds model and optimizer. They are written
beside, synced, then renamed: whatever happens, the last one is whole. A model is read into memory, its digest is computed there,
and if it is large it rests in a file without a name until it is used: nobody can change it any more.

Large models are saved now and then. If all members lost power in between, nobody could hand out the model after the last
record; but each update is a pure function of the model before it and the aggregate, and the records prove every aggregate. So the
aggregates since the last saved model are kept, and with both, a peer makes its model again (SPEC B6, U1).
"""

import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from io import FileIO
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from troth.clip.blocks import PLAIN, Code
from troth.crypto import CHUNK_BYTES, Digest, blob_digest
from troth.files import read_into, write_by, write_bytes
from troth.network.disk.lock import DiskError, or_disk_error, step_files
from troth.protocol.broadcast.link import NO_SLOT, SlotKey
from troth.protocol.broadcast.serving import Served
from troth.protocol.core.parts import Bounds, part_bounds
from troth.protocol.core.records import StepRecord, aggregates_digest
from troth.protocol.core.roles import PendingAudits
from troth.protocol.core.roster import Roster, Scales
from troth.protocol.core.state import LastRecord, State
from troth.protocol.recovery.models import served_aggregate, updated
from troth.protocol.wire.blob import Blob, bytes_of, digest_all
from troth.protocol.wire.messages import Malformed
from troth.protocol.wire.primitives import Primitives
from troth.resting import rest
from troth.training.work import Training, TrainingWork

# D coordinates


class AggregateFiles:
    """One file for each step since the last saved model, in the run's code, written beside the next step."""

    def __init__(self, folder: Path, size: int, code: Code = PLAIN) -> None:
        self._folder = folder
        self._size = size  # D
        self.code = code
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
            raw = self.code.centers.pack(kept.aggregate_D)  # without an update too: audits need it (SPEC K1)
            self._written = self._thread.submit(write_bytes, self._path(record.step), raw)
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
        found = self.read_parts(record.step, part_bounds(self._size, record.parts, self.code))
        if found is None or aggregates_digest(blob.digest for blob in found[1]) != record.aggregates:
            return None
        return found[0]

    def read_parts(self, step: int, bounds: Bounds) -> tuple[Tensor, tuple[Blob, ...]] | None:
        """The aggregate of a step, if there is one, and its parts with their digests; nothing is checked but its length."""
        form, stored = self.code.centers, self.code.centers.stored(torch.zeros(self._size))
        try:
            with FileIO(self._path(step)) as file:  # not mapped: it may be written over once its digests were checked
                whole = os.fstat(file.fileno()).st_size == stored.nbytes == form.length(bounds[-1])
                if not whole or not read_into(file, stored.numpy().data.cast("B")):
                    return None
        except FileNotFoundError:
            return None
        aggregate_D = form.read(stored)
        if aggregate_D is None:
            return None
        blobs = Blob.cut(aggregate_D, bounds, form, bytes_of(stored))
        digest_all(blobs)
        return aggregate_D, blobs

    def served(self, digest: Digest) -> Served | None:
        """An aggregate of one of the last steps for peers that catch up, read as they ask for it (SPEC J2). They check it: a disk
        that failed costs them a chunk. None once its file is gone."""
        if digest not in self._named:
            return None
        step, bounds = self._named[digest]
        if not self._path(step).exists():
            return None
        return Served(
            partial(self._index, step, bounds),
            partial(_chunk_of, self._path(step), tuple(map(self.code.centers.length, bounds))),
        )

    def _index(self, step: int, bounds: Bounds) -> bytes:
        found = self.read_parts(step, bounds)
        return b"" if found is None else served_aggregate(found[0], bounds, self.code).index

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:09}.aggregate"


def _chunk_of(path: Path, places: Sequence[int], number: int) -> memoryview | None:
    """A chunk of the aggregate in a file, without the rest of it: what `served_aggregate` gives by the same number. Its parts
    begin at these `places` in the file, and the last is its end."""
    for start, stop in pairwise(places):
        chunks = -(-(stop - start) // CHUNK_BYTES)
        if number < chunks:
            at = start + number * CHUNK_BYTES
            length = min(CHUNK_BYTES, stop - at)
            with suppress(OSError), FileIO(path) as file:
                raw = os.pread(file.fileno(), length, at)
                return memoryview(raw) if len(raw) == length else None
            return None
        number -= chunks
    return None


@dataclass(frozen=True)
class Base:
    """A model that is here, and its digest as records name it."""

    step: int  # at the start of which it was
    training: Training
    model: Digest


class Replay:
    """Replays updates, and remembers the two states before the last one: a peer may have to go back by a step, and then audits
    the work of the step before (SPEC B2, B6). `rest` moves these out of memory."""

    def __init__(self, work: TrainingWork, aggregates: AggregateFiles, rest: Callable[[Training], None]) -> None:
        self._work = work
        self._aggregates = aggregates
        self._rest = rest
        self._earlier: tuple[Base, ...] = ()

    def __call__(
        self, step: int, model: Digest, records: Mapping[int, StepRecord], base: Callable[[], Base | None]
    ) -> Training | None:
        """The model at the start of a step, if everything since the base is here and leads to this digest."""
        known = next((one for one in self._earlier if (one.step, one.model) == (step, model)), None)
        if known is not None:
            return known.training
        self._earlier, here = (), base()
        while here is not None and here.step < step:
            before, here = here, self._next(here, records.get(here.step))
            if before.step >= step - 2:
                self._rest(before.training)
                self._earlier = (*self._earlier, before)
        return here.training if here is not None and here.model == model else None

    def _next(self, here: Base, record: StepRecord | None) -> Base | None:
        if record is None or record.closing or record.state_before != here.model:
            return None
        training = here.training
        if record.updated:
            aggregate_D = self._aggregates.read(record)
            if aggregate_D is None:
                return None
            training = updated(self._work, Primitives(), training, record, aggregate_D)
        if record.content and self._work.digest(training) != record.state_after:
            return None  # memory or disk failed somewhere on the way
        return Base(here.step + 1, training, Digest(record.state_after))


FORMAT = "troth checkpoint 5"
_SAME = (
    "step",
    "roster",
    "randomness",
    "earlier_randomness",
    "scales",
    "incarnation",
    "last",
)  # in memory and in the file
_UNCHECKED = Digest(bytes(32))
_OTHER_FORMAT = re.compile(r"troth checkpoint [0-9]+")
_SMALL = 1 << 24  # bytes of a model that is saved with every step
_SELDOM = 50  # between two saves of a large model: this many times as long as the first one took


@dataclass(frozen=True)
class Marks:
    """Ends of the other files when a checkpoint was written: a file that ends earlier now was cut, or is an older copy."""

    journal: Digest | None = None  # the end of its chain
    signed: SlotKey = NO_SLOT  # the last signed slot


@dataclass(frozen=True)
class SavedState:
    """`step-N.json`, field by field."""

    format: str
    run: Digest
    step: int
    roster: Roster
    randomness: Digest
    earlier_randomness: Digest
    scales: Scales
    due: PendingAudits
    model: Digest  # digest of the state, as records name it (SPEC U5)
    content: Digest | None  # digest of model and optimizer themselves; None: not saved, and no record names it
    incarnation: int
    last: LastRecord | None
    marks: Marks
    check: Digest = _UNCHECKED  # over all of the above: finds accidents

    def checked(self) -> "SavedState":
        return replace(self, check=_digest(self))


def _digest(saved: SavedState) -> Digest:
    return blob_digest(msgspec.json.encode(replace(saved, check=_UNCHECKED)))


def _text(saved: SavedState) -> bytes:
    return msgspec.json.format(msgspec.json.encode(saved), indent=1)


def read_exactly(raw: bytes) -> SavedState:
    """The state in `step-N.json`, for people who check it: raises ValueError for anything but what is written there."""
    saved = msgspec.json.decode(raw, type=SavedState)
    if saved.format != FORMAT:
        raise ValueError("another version of Troth wrote this file")
    if saved.check != _digest(saved) or _text(saved) != raw:
        raise ValueError("the file was changed or damaged: its check digest does not fit")
    return saved


class _Format(msgspec.Struct):
    """The only field that all versions have in common."""

    format: str


@dataclass(frozen=True)
class LatestState:
    """The last state that was saved."""

    state: State[Training]
    lacks: Digest | None  # digest of the model, if it was not saved: the state then holds the run's first one
    past: tuple[State[Training], ...] = ()  # the states just before, oldest first


# Step, digest of its model, its last record, and the newest model before it: the model, if it can be made again.
Restore = Callable[[int, Digest, LastRecord | None, Callable[[], Base | None]], Training | None]


def _cannot(_step: int, _model: Digest, _last: LastRecord | None, _base: Callable[[], Base | None]) -> Training | None:
    return None


class Checkpoints:
    """The last few checkpoints, in one folder."""

    def __init__(
        self,
        folder: Path,
        run: Digest,
        work: TrainingWork,
        *,
        keep: int = 3,
        every: int = 16,
        clock: Callable[[], float] = time.monotonic,
        restore: Restore = _cannot,  # makes a model that was not saved
    ) -> None:
        self._restore = restore
        self._clock = clock
        self._next = clock()  # when a large model may be saved again
        self._saved_at = 0  # step of the last model
        self._folder = folder
        self._run = run
        self.work = work
        self._keep = keep
        self._every = every  # steps between models, at most
        with or_disk_error(f"make {folder}"):
            folder.mkdir(parents=True, exist_ok=True)

    def save(
        self,
        state: State[Training],
        marks: Marks | None = None,
        *,
        whole: bool = False,
        owed: Collection[int] = (),
    ) -> bool:
        """Write a checkpoint; return whether with its model, which `whole` asks for. Everything that the marks name must be on
        disk already. For each step of which an audit is owed, the newest model up to there is kept, beside the last few."""
        writes = whole or self._saves_model(state)
        content = state.model if state.content else self.work.digest(state.training) if writes else None
        self._put(self._saved(state, content, marks or Marks()), state.training if writes else None, owed)
        return writes

    def save_standing(self, state: State[Training], lacks: Digest, marks: Marks) -> None:
        """Write a checkpoint of a state whose model, with this digest, is not here yet."""
        self._put(self._saved(replace(state, model=lacks), None, marks), None, ())

    def _put(self, saved: SavedState, training: Training | None, owed: Collection[int]) -> None:
        path = self._folder / f"step-{saved.step:09}.json"
        with or_disk_error(f"write a checkpoint to {self._folder}"):
            if training is not None:
                began = self._clock()
                write_by(path.with_suffix(".safetensors"), lambda partial: self.work.write(training, partial))
                self._next, self._saved_at = self._clock() + _SELDOM * (self._clock() - began), saved.step
            write_bytes(path, _text(saved))
            self._prune(owed)

    def _saved(self, state: State[Training], content: Digest | None, marks: Marks) -> SavedState:
        same: dict[str, Any] = {name: getattr(state, name) for name in _SAME}
        return SavedState(
            FORMAT, self._run, model=state.model, content=content, due=state.pending_audits, marks=marks, **same
        ).checked()

    def _saves_model(self, state: State[Training]) -> bool:
        """A small model always; a large one where its record names its content, so that others can take it from this peer after a
        power cut, if there is time for it or it is its turn."""
        due = self._clock() >= self._next or state.step - self._saved_at >= self._every
        return self.is_small(state.training) or (state.content and due)

    def _prune(self, owed: Collection[int]) -> None:
        models, states = step_files(self._folder, "safetensors"), step_files(self._folder, "json")
        kept = {*list(models)[-self._keep :], *list(states)[-self._keep :], *map(self.base_of, owed)}
        for step, path in (*models.items(), *states.items()):
            if step not in kept:
                path.unlink()

    def base_of(self, step: int) -> int:
        """Step of the newest model that was saved up to this step: from it the model there is made again. The run's first one, if
        there is none."""
        models = step_files(self._folder, "safetensors").keys() & step_files(self._folder, "json").keys()
        return max((saved for saved in models if saved <= step), default=0)

    def marks(self) -> Marks:
        """The marks of the newest checkpoint."""
        paths = sorted(self._folder.glob("step-*.json"), reverse=True)
        return next((saved.marks for path in paths if (saved := _read(path, self._run)) is not None), Marks())

    def last(self, first: State[Training]) -> LatestState:
        """The newest checkpoint; the run's first state if there is none."""
        paths = sorted(self._folder.glob("step-*.json"), reverse=True)
        found = list(islice((one for path in paths if (one := self._found(path, first)) is not None), 3))
        if not found:
            return LatestState(first, None)
        newest, past, later = found[0], list[State[Training]](), found[0].state
        for earlier in (*(one.state for one in found[1:]), first):
            if len(past) < 2 and _leads_to(earlier, later):
                past.insert(0, earlier)
                later = earlier
        return replace(newest, past=tuple(past))

    def _found(self, path: Path, first: State[Training]) -> LatestState | None:
        saved = _read(path, self._run)
        if saved is None:
            return None
        training = self._kept(saved)
        if training is None:
            training = self._restore(saved.step, saved.model, saved.last, lambda: self._base(saved.step, first))
        same: dict[str, Any] = {name: getattr(saved, name) for name in _SAME}
        here, model = (first.training, first.model) if training is None else (training, saved.model)
        state = State(training=here, model=model, pending_audits=saved.due, audit_records={}, **same)
        return LatestState(state, None if training is not None else saved.model)

    def restored(self, step: int, model: Digest, first: State[Training]) -> Training | None:
        """The model of an earlier step by its digest as records name it: read from its file, or made again."""
        saved = _read(self._folder / f"step-{step:09}.json", self._run)
        if saved is not None and saved.model == model and (found := self._kept(saved)) is not None:
            return found
        return self._restore(step, model, None, lambda: self._base(step, first))

    def _base(self, step: int, first: State[Training]) -> Base | None:
        """The newest saved model before this step, or the run's first."""
        for path in sorted(self._folder.glob("step-*.safetensors"), reverse=True):
            saved = _read(path.with_suffix(".json"), self._run)
            if saved is not None and saved.step < step and (training := self._kept(saved)) is not None:
                return Base(saved.step, training, saved.model)
        return Base(first.step, first.training, first.model)

    def _kept(self, saved: SavedState) -> Training | None:
        return None if saved.content is None else self.model(saved.step, saved.content)

    def is_small(self, training: Training) -> bool:
        """Whether the model is so small that it is saved with every step."""
        return 4 * training.parameters_D.numel() <= _SMALL

    def model(self, step: int, digest: Digest) -> Training | None:
        """The model of an earlier step, if it is still there."""
        path = self._folder / f"step-{step:09}.safetensors"
        if not path.exists():
            return None
        training: Any = self.work.read(path)
        if isinstance(training, Malformed) or self.work.digest(training) != digest:
            return None
        rest(training.vectors, self._folder)
        return training  # type: ignore[no-any-return]


def _leads_to(earlier: State[Training], later: State[Training]) -> bool:
    """Whether a state is the one just before; one of a step that was discarded, and made again, is not."""
    record = None if later.last is None else later.last.record
    return record is not None and (earlier.step, earlier.model) == (record.step, record.state_before)


@dataclass(frozen=True)
class SavedModel:
    """The model of a checkpoint, as it was found on disk."""

    path: Path
    step: int | None  # next one; None if the file does not say
    training: Training


def find_model(place: Path, run: Digest, work: TrainingWork) -> SavedModel:
    """The newest model in a peer's folder, or the one in this file, wherever that lies; also while the peer is running.

    Raises `DiskError` if there is none, if it is another run's, or if it is damaged. Then an older one is named, and not
    taken: a person who wanted the model at the end would not notice."""
    if place.is_file():
        found = _saved_model(place, work, _read(place.with_suffix(".json"), run))
        if found is None:
            raise DiskError(f"{place} is no checkpoint of this run, or is damaged: name another, or a peer's folder")
        return found
    damaged: Path | None = None
    paths = [*place.glob("checkpoints/step-*.safetensors"), *place.glob("step-*.safetensors")]
    for path in sorted(paths, key=lambda path: path.name, reverse=True):
        beside = path.with_suffix(".json")
        saved = _read(beside, run)
        if saved is None and not beside.exists():
            continue  # it is written last: the peer is writing, or its power went
        found = _saved_model(path, work, saved)
        if not path.exists():
            continue  # its peer has newer ones by now, and deleted it
        if found is None or saved is None:
            damaged = damaged or path
        elif damaged is None:
            return found
        else:
            raise DiskError(
                f"{damaged} is damaged: name another member's folder; or in place of {place} the newest that is whole, {path}"
            )
    if damaged is not None:
        raise DiskError(f"{damaged} is damaged, and no older model here is whole: name another member's folder")
    raise DiskError(f"{place} holds no checkpoint: name a peer's folder, or one of its checkpoints")


def _saved_model(path: Path, work: TrainingWork, saved: SavedState | None) -> SavedModel | None:
    """None if it is not what was `saved`, as far as that is known, or not of this task's form."""
    training: Any = work.read(path)
    if isinstance(training, Malformed) or len(training.parameters_D) != work.problem.size:
        return None
    if saved is not None and saved.content is not None and work.digest(training) != saved.content:
        return None
    return SavedModel(path, None if saved is None else saved.step, training)


def _read(path: Path, run: Digest) -> SavedState | None:
    """The state in a file; None if it is damaged or not there."""
    try:
        raw = path.read_bytes()
        kind = msgspec.json.decode(raw, type=_Format).format
        saved = msgspec.json.decode(raw, type=SavedState) if kind == FORMAT else None
    except (OSError, ValueError, RecursionError):
        return None
    if saved is None:
        if _OTHER_FORMAT.fullmatch(kind):
            raise DiskError(
                f"{path} was written by another version of Troth: use that one, or choose another folder",
                wrong_folder=True,
            )
        return None
    if saved.check != _digest(saved):
        return None
    if saved.run != run:
        raise DiskError(f"{path} belongs to another run: choose another folder", wrong_folder=True)
    return saved
