"""States on disk, held against the records that name them: checkpoints, audit records and aggregates (SPEC K1, U5)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from troth.audit.files import FileError, files_in, load_tensors, read_bytes
from troth.audit.report import AuditReport, Check
from troth.audit.retrace import Updates
from troth.audit.walk import Walked
from troth.crypto import Digest
from troth.network.disk import audit_records, checkpoints
from troth.network.disk.audit_records import SavedAuditRecord
from troth.network.disk.checkpoints import AggregateFiles, SavedState
from troth.protocol.broadcast.link import SlotKey
from troth.protocol.core.parts import part_bounds
from troth.protocol.core.records import StepRecord, aggregates_digest
from troth.protocol.core.run import Run
from troth.protocol.core.state import AuditRecord, State
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Malformed
from troth.training.work import Training, state_digest, training_of

_MOST_STATE = 64 << 20  # bytes of a state without its model
_MOST_AUDIT_RECORD = 1 << 30
_HEADER = 1 << 20
_BYTES_A_PARAMETER = 64  # of model and optimizer; AdamW has 12


@dataclass
class StateFiles:
    """Files that were found right, for the sample."""

    models: dict[Digest, Path] = field(default_factory=dict)  # by the digest of their content
    aggregates: dict[int, Callable[[], Blob | None]] = field(default_factory=dict)  # by step


def read_model(path: Path, size: int) -> Training:
    """Model and optimizer in a file, bounded by the model's size. Raises `FileError`."""
    training = training_of(load_tensors(path, _HEADER + _BYTES_A_PARAMETER * size))
    if isinstance(training, Malformed):
        raise FileError(training.reason)
    return training


@dataclass
class StateChecker:
    """Checks the folder `checkpoints`."""

    _folder: Path
    _run: Run
    _walked: Walked
    _report: AuditReport
    _chains: set[Digest]  # all ends that the journal's chain has had
    _signed: SlotKey | None  # the last slot that this peer signed
    _contents: dict[int, Digest] = field(default_factory=dict)  # of states, by the step that they begin
    found: StateFiles = field(default_factory=StateFiles)

    @cached_property
    def _files(self) -> AggregateFiles:
        return AggregateFiles(self._folder, self._run.parameters.size, self._run.parameters.coding)

    def check(self) -> StateFiles:
        states = files_in(self._folder, "step-*.json")
        if not states:
            self._report.skipped(str(self._folder), "it holds no checkpoint")
        self._each(states, self._check_state)
        if states:
            self._each(states[-1:], self._check_marks)
        for path in files_in(self._folder, "step-*.safetensors"):
            if not path.with_suffix(".json").exists():
                self._report.skipped(str(path), "no file beside it says what it is")
        self._each(files_in(self._folder, "step-*.audit"), self._check_audit_record)
        self._each(files_in(self._folder, "step-*.aggregate"), self._check_aggregate)
        return self.found

    def _each(self, paths: Iterable[Path], check: Callable[[Path], None]) -> None:
        for path in paths:
            with self._report.faults(Check.FILES, path):
                check(path)

    # Checkpoints

    def _check_state(self, path: Path) -> None:
        saved = checkpoints.read_exactly(read_bytes(path, _MOST_STATE))
        self._expect_name(path, saved.step, saved.run)
        state, record = self._walked.states.get(saved.step), self._walked.records.get(saved.step - 1)
        model = path.with_suffix(".safetensors")
        if model.exists():
            self._check_model(model, saved)
        if state is None or (record is None and saved.step):
            why = "no certified record of the journal leads to it: its last step was not certified, or is too long ago"
            self._report.skipped(str(path), why)
            return
        if differ := _differences(saved, state, partial=self._walked.gap is not None):
            raise FileError(f"the records lead to another state, in: {', '.join(differ)}")
        if record is not None and record.content and saved.content not in (None, record.state_after):
            raise FileError("the records lead to another content of model and optimizer")
        if saved.content is not None:
            self._contents[saved.step] = saved.content
        self._report.passed(Check.FILES)

    def _check_model(self, path: Path, saved: SavedState) -> None:
        with self._report.faults(Check.CONTENTS, path):
            digest = state_digest(read_model(path, self._run.parameters.size))
            if digest != saved.content:
                raise FileError(f"it holds another state than {path.stem}.json names")
            self.found.models[digest] = path
            self._report.passed(Check.CONTENTS)

    def _check_marks(self, path: Path) -> None:
        marks = checkpoints.read_exactly(read_bytes(path, _MOST_STATE)).marks
        if marks.journal is not None and marks.journal not in self._chains:
            raise FileError("the journal ends before this checkpoint was written: it was cut, or is an older copy")
        if self._signed is not None and self._signed < marks.signed:
            raise FileError("the signed slots end before this checkpoint was written: an older copy")

    # Audit records and aggregates

    def _check_audit_record(self, path: Path) -> None:
        saved = audit_records.read_exactly(read_bytes(path, _MOST_AUDIT_RECORD))
        self._expect_name(path, saved.step, saved.run)
        record, after = self._walked.records.get(saved.step), self._walked.states.get(saved.step + 1)
        if record is None or after is None:
            self._report.skipped(str(path), "the journal holds no certified record of its step")
            return
        if saved.aggregate is not None:
            self._check_numbers(saved.aggregate, record)
            self.found.aggregates[saved.step] = lambda: Blob(saved.aggregate or b"")
        content = saved.model if saved.names_content else self._contents.get(saved.step)
        if saved.state not in (None, content):
            if content is not None:
                raise FileError("it names another content of the state than the records")
            self._report.skipped(f"the content that {path} names", "no record names it, and no checkpoint holds it")
        kept = after.audit_records.get(saved.step)
        if kept is None:
            self._report.skipped(str(path), "its step was not retraced, so only its aggregate was checked")
        elif differ := _unlike(saved, kept):
            raise FileError(f"the announcements lead to another audit record, in: {', '.join(differ)}")
        self._report.passed(Check.FILES)

    def _check_numbers(self, aggregate: bytes, record: StepRecord) -> None:
        size, code, view = self._run.parameters.size, self._run.parameters.coding, memoryview(aggregate)
        places = map(code.centers.length, part_bounds(size, record.parts, code))
        if len(aggregate) != code.centers.length(size):
            raise FileError("its aggregate has another length than the model")
        parts = [Blob(view[start:stop]) for start, stop in pairwise(places)]
        if aggregates_digest(part.digest for part in parts) != record.aggregates:
            raise FileError("it holds another aggregate than the one that its step's record names")

    def _check_aggregate(self, path: Path) -> None:
        step = int(path.stem.removeprefix("step-"))
        record = self._walked.records.get(step)
        if record is None:
            self._report.skipped(str(path), "the journal holds no certified record of its step")
            return
        found = self._files.read(record)
        if found is None:
            raise FileError("it holds another aggregate than the one that its step's record names")
        self.found.aggregates[step] = lambda: self._blob(record)
        self._report.passed(Check.FILES)

    def _blob(self, record: StepRecord) -> Blob | None:
        numbers_D = self._files.read(record)
        return None if numbers_D is None else Blob.of(numbers_D, self._run.parameters.coding.centers)

    def _expect_name(self, path: Path, step: int, run: bytes) -> None:
        if run != self._run.id:
            raise FileError("it belongs to another run")
        if path.stem != f"step-{step:09}":
            raise FileError(f"it is of step {step}, whatever its name says")


def _differences(saved: SavedState, state: State[Updates], *, partial: bool) -> list[str]:
    """Names of the fields in which a checkpoint differs from the state that the records lead to."""
    pairs: dict[str, tuple[object, object]] = {
        "members": (saved.roster.members, state.roster.members),
        "model": (saved.model, state.model),
    }
    if not state.closed:
        pairs["randomness"] = saved.randomness, state.randomness
        pairs["audits"] = saved.due.contributors, state.pending_audits.contributors
    if not partial:
        pairs["roster"] = saved.roster, state.roster
        pairs["scales"] = saved.scales, state.scales
    if state.last is not None and saved.last is not None:
        pairs["last record"] = saved.last.record, state.last.record
    return [name for name, (here, there) in pairs.items() if here != there]


def _unlike(saved: SavedAuditRecord, kept: AuditRecord[Updates]) -> list[str]:
    """Names of the fields in which an audit record differs from the one that the announcements lead to."""
    same = ("model", "seed_randomness", "owners", "bounds", "tau", "projection_key", "attempt")
    differ = [name for name in same if getattr(saved, name) != getattr(kept, name)]
    if saved.names_content != kept.content:
        differ.append("content")
    for name in ("commits", "reports", "clips", "accuses", "probed"):
        said = {bytes(peer): one.envelope for peer, one in getattr(kept, name).items()}
        if getattr(saved, name) != said:
            differ.append(name)
    return [name.replace("_", " ") for name in differ]
