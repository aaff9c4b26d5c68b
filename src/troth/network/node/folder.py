"""A peer's folder: everything that has to survive a power cut, and the model at the end.

run                 the run that the folder belongs to
owner               a signature of the key whose folder it is
lock                held while a process uses the folder
log.txt             everything that people were told, and every step
checkpoints/        the last states, audit records of the last steps, aggregates since the last saved model if it is large;
                    and whatever audits need that are owed from earlier steps
journal/            everything that was agreed on, and every change of the members
download/           chunks of the model, while this peer fetches it
signed-slots        the slots that this peer has signed (SPEC B1)
successor.key       the successor key, if this peer lost its slots
record-keys/        the keys with which this peer signs records; old ones are erased
evidence/           evidence of bans
model.safetensors, model.json
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

from troth.clip.blocks import PLAIN, Code
from troth.crypto import Digest, Identity, tagged_hash, verify
from troth.evidence.file_format import to_text
from troth.evidence.model_file import model_file
from troth.evidence.verify_model import proves_model
from troth.files import Lock, write_text
from troth.network.disk.audit_records import AuditRecordFiles
from troth.network.disk.checkpoints import (
    AggregateFiles,
    Base,
    Checkpoints,
    LatestState,
    Marks,
    Replay,
)
from troth.network.disk.chunks import ChunkFiles
from troth.network.disk.journal import CHANGES_FILE, Journal
from troth.network.disk.lock import DiskError, lock_folder, or_disk_error, step_files
from troth.network.disk.signing import RecordKeyFiles, SignedSlotsFile
from troth.protocol.core.records import StepRecord, decode_record
from troth.protocol.core.run import Run
from troth.protocol.core.state import LastRecord, State
from troth.protocol.wire.frames import CertifiedRecord
from troth.resting import rest
from troth.training.weights import write_model
from troth.training.work import Training, TrainingWork, tensor_digests

_FIRST = "step-000000000"  # checkpoint of the first state


class PeerFolder:
    """Claims a folder for one run and opens its files, except the signed slots, which `open_slots` opens."""

    def __init__(
        self,
        path: Path,
        run: Digest,
        work: TrainingWork,
        *,
        keep_checkpoints: int,
        note: Callable[[str], None],
        keep_aggregates: int = 0,  # of the last steps, if the model is large, for others (SPEC J2)
        first_record_key: Path | None = None,  # that a founder made for the beginning of this run
        code: Code = PLAIN,
        owner: Identity | None = None,  # the key in the manifest; None: whoever opens it knows where it comes from
    ) -> None:
        self.path = path
        self._slots_path, self._successor_path = path / "signed-slots", path / "successor.key"
        self._work = work
        self._note = note
        self._keep_aggregates = keep_aggregates
        self._lock = _claim(path, run, owner, note)
        self._checkpoints = Checkpoints(path / "checkpoints", run, work, keep=keep_checkpoints, restore=self._replayed)
        self.aggregates = AggregateFiles(path / "checkpoints", work.problem.size, code)
        self._audit_records = AuditRecordFiles(path / "checkpoints", run, self._checkpoints, self.aggregates)
        self._replay = Replay(work, self.aggregates, lambda training: rest(training.vectors, path))
        self.journal = Journal(path / "journal", run, after=self._checkpoints.marks().journal)
        if self.journal.cut:
            note(f"the journal's last line was torn: {self.journal.cut} bytes of it are cut off")
        if self.journal.roster_changes.mended:
            note(
                f"{path / 'journal' / CHANGES_FILE} was damaged, or older than the journal beside it: it is mended from that"
            )
        self.chunks = ChunkFiles(path / "download", note)
        self.record_keys = RecordKeyFiles(path / "record-keys", first_record_key)
        self.slots: SignedSlotsFile | None = None

    def close(self) -> None:
        if self.slots is not None:
            self.slots.close()
            self.slots = None
        self.chunks.close()
        self.journal.close()
        self._lock.release()

    # The key, and what it has signed

    @property
    def has_slots(self) -> bool:
        """Whether this peer has signed anything in this run before, as far as it knows."""
        return self._slots_path.exists()

    def open_slots(self, at_least: Marks) -> SignedSlotsFile:
        self.slots = SignedSlotsFile(self._slots_path, at_least.signed)
        return self.slots

    def marks(self) -> Marks:
        """How far journal and slots had come at the last checkpoint."""
        return self._checkpoints.marks()

    def current_identity(self, seat: Identity) -> Identity:
        """The successor key, if there is one; otherwise the key in the manifest."""
        return Identity.load(self._successor_path) if self._successor_path.exists() else seat

    def make_successor(self) -> None:
        """A new key: slots that the old one may have signed are unknown, and signing one again would be an equivocation."""
        Identity.generate().save(self._successor_path)
        self.record_keys.erase()  # the old key's: they would be named again, and be there as long as the new ones [U6]

    # States

    def last(self, first: State[Training]) -> LatestState:
        """The newest saved state with its audit records; `first` if there is none."""
        with self._writing():
            found = self._checkpoints.last(first)
            newest = max(step_files(self.path / "checkpoints", "json"), default=0)
            if newest > found.state.step:
                self._note(
                    f"the checkpoint of step {newest} in {self.path} is damaged: this peer goes on from that of step "
                    f"{found.state.step}, and the others tell it what it missed; look after the disk"
                )
            states = *found.past, found.state
            records = self._records(found.state.step) if any(one.pending_audits.owed_steps for one in states) else {}

            @cache
            def restore(step: int, model: Digest) -> Training | None:
                rest(found.state.training.vectors, self.path)  # room for the one that is made
                training = self._checkpoints.restored(step, model, first)
                rest(() if training is None else training.vectors, self.path)
                return training

            *past, last = (self._audit_records.onto(one, found.past, records, restore) for one in states)
            self._rest(last, *past)
            return LatestState(last, found.lacks, tuple(past))

    def _replayed(
        self, step: int, model: Digest, last: LastRecord | None, base: Callable[[], Base | None]
    ) -> Training | None:
        """The model of a state that was saved without it, from the aggregates since an earlier one."""
        records = self._records(step)
        if last is not None:
            records[last.record.step] = last.record
        return self._replay(step, model, records, base)

    def _records(self, step: int) -> dict[int, StepRecord]:
        return {record.step: record for record in (decode_record(one.record) for one in self.certified(step))}

    def recorded(self, certified: Sequence[CertifiedRecord]) -> None:
        """Write down certified records, once everything is on disk that their models can be made from."""
        with self._writing():
            self.aggregates.wait()
        self.journal.recorded(certified)

    def certified(self, step: int) -> list[CertifiedRecord]:
        """The certified records before this step; before the one before it, if its last record is not certified yet."""
        return self.journal.certified(step) or self.journal.certified(step - 1)

    def save_step(self, state: State[Training], *, whole: bool) -> None:
        """Save the state after a step; with its model in any case if `whole`. A large one is saved now and then, and each step's
        aggregate until the next time."""
        small, owed = self._checkpoints.is_small(state.training), self._audit_records.save(state)
        with self._writing():
            follows = small or self.aggregates.add(state)
            if self._checkpoints.save(state, self._settled(), whole=whole or not follows, owed=owed):
                self.chunks.clear()  # whatever was fetched is in a checkpoint
                if not small:
                    self.aggregates.saved(state)
            # The last record may not be certified, so the peer may go back by a step, and audit the one before (SPEC B2, B6).
            oldest = min((*owed, state.step - 2))
            self.aggregates.prune(min(self._checkpoints.base_of(oldest), state.step - self._keep_aggregates))
            self._rest(state)

    def save_standing(self, state: State[Training], lacks: Digest) -> None:
        """Save where a stranger has followed the run to, while its model is on its way: the records from here on lead from the
        content that it fetches to wherever the run is when it comes back."""
        self._checkpoints.save_standing(state, lacks, self._settled())

    def _rest(self, state: State[Training], *earlier: State[Training]) -> None:
        """Move earlier states, and the states and aggregates that audits may still need, from memory to files, if they are large
        (SPEC K1)."""
        kept = state.audit_records.values()
        trainings = [*(record.training for record in kept), *(one.training for one in earlier)]
        vectors = [vector for one in trainings if one is not state.training for vector in one.vectors]
        rest([*vectors, *(record.aggregate_D for record in kept)], self.path)

    def _writing(self) -> AbstractContextManager[None]:
        return or_disk_error(f"write to {self.path}")

    def save_when_stopping(self, state: State[Training]) -> None:
        """Save state, model and audit records: if all others stop too, nobody else has the model (SPEC B5)."""
        owed = self._audit_records.save(state)
        with self._writing():
            self.aggregates.wait()
        self._checkpoints.save(state, self._settled(), whole=True, owed=owed)

    def _settled(self) -> Marks:
        assert self.slots is not None
        return Marks(self.journal.settle(), self.slots.last)

    # The end

    def save_model(self, run: Run, state: State[Training], last: CertifiedRecord | None) -> bool:
        """Write the model for its users, and the record that proves where it comes from. Whether that record closes the run."""
        self._checkpoints.save(state, self._settled(), whole=True)
        write_model(self.path / "model.safetensors", self._work.problem.state_dict(state.training.parameters_D))
        changes = [] if last is None else self.journal.roster_changes.before(decode_record(last.record).step)
        proof = model_file(run, state.step, tensor_digests(state.training), changes, last)
        write_text(self.path / "model.json", to_text(proof))
        if proof.closed and not proves_model(proof):
            self._note("this peer lacks records of who the members were: use another member's model.json as a proof")
        return proof.closed


def _claim(path: Path, run: Digest, owner: Identity | None, note: Callable[[str], None]) -> Lock:
    """Make the folder this run's, for this process alone.

    Raises `DiskError` if it cannot be written to, is in use, or holds something of another run, or that its owner did not put
    there: what came with a manifest may hold the very folder that its run will be kept in, and there a key that somebody else
    has would be taken for this peer's own successor key, and be handed its seat."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        mine = owner is None or _is_signed(path / "owner", run, owner)
        _refuse_links(path, mine=mine)
        lock = lock_folder(path)
        mark = path / "run"
        others = mark.exists() and mark.read_text(encoding="ascii", errors="replace").strip() != run.hex()
        if others or not mine:
            if _precious(path):
                why = "belongs to another run" if others else "holds files of this run, and no signature of this key"
                raise DiskError(f"{path} {why}: choose another", wrong_folder=True)
            _clear(path)
        if others:
            note(f"{path} was another run's, in which this peer had done nothing yet: it is used for this one now")
        write_text(mark, run.hex() + "\n")
        if owner is not None and not mine:
            write_text(path / "owner", owner.sign(_owned(run)).hex() + "\n")
    except OSError as error:
        raise DiskError(f"cannot write to {path}: {error.strerror}; choose another", wrong_folder=True) from error
    return lock


def _owned(run: Digest) -> Digest:
    return tagged_hash("troth/folder/1", run)


def _is_signed(path: Path, run: Digest, owner: Identity) -> bool:
    try:
        with path.open("rb") as file:
            return verify(owner.peer, _owned(run), bytes.fromhex(file.read(256).decode("ascii")))
    except (FileNotFoundError, ValueError):
        return False


def _refuse_links(path: Path, *, mine: bool) -> None:
    """What came with a manifest may hold a link, `log.txt` to a file that a shell reads: then the log would be written into that.
    Links to folders, on a larger disk for instance, are the owner's affair, unless a folder that is not `mine` yet brings along
    one to where something lies already; what lies in them is looked at too."""
    entries = list(path.iterdir())
    below = [inside for entry in entries if entry.is_dir() for inside in entry.iterdir()]
    full = {inside.parent for inside in below}
    link = next(
        (one for one in (*entries, *below) if one.is_symlink() and not (one.is_dir() and (mine or one not in full))),
        None,
    )
    if link is not None:
        raise DiskError(
            f"{link} is a link, and would be written through: delete it, or choose another", wrong_folder=True
        )


def _precious(path: Path) -> bool:
    """Whether the folder holds anything that its run, or its owner, would miss: keys, signed slots, records, evidence, models.

    A checkpoint of the first state follows from the manifest."""
    files = ["successor.key", "signed-slots.begun", "model.safetensors", "model.json"]
    patterns = ["journal/*", "evidence/*", "checkpoints/*.audit", "record-keys/*.key"]
    started = any(one.stem != _FIRST for one in path.glob("checkpoints/step-*"))
    slots = path / "signed-slots"
    signed = slots.exists() and slots.stat().st_size > 0
    kept = any(one.stat().st_size > 0 for pattern in patterns for one in path.glob(pattern))
    return started or signed or kept or any((path / name).exists() for name in files)


def _clear(path: Path) -> None:
    """Remove what nobody misses, and what would be taken for this run's."""
    for old in (*path.glob(f"checkpoints/{_FIRST}.*"), *path.glob("journal/*"), path / "signed-slots"):
        old.unlink(missing_ok=True)
