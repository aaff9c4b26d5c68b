"""A peer's folder: everything that has to survive a power cut, and the model at the end.

run                 the run that the folder belongs to
checkpoints/        the last states, and the audit records of the last steps
journal/            everything that was agreed on, and every change of the members
signed-slots        the slots that this peer has signed (SPEC B1)
successor.key       the successor key, if this peer lost its slots
evidence/           evidence of bans
model.safetensors, model.json
"""

from collections.abc import Callable
from pathlib import Path

from safetensors.torch import save

from troth.crypto import Digest, Identity
from troth.evidence.model_file import model_file, to_text
from troth.evidence.verify_model import proves_model
from troth.files import write_bytes, write_text
from troth.network.disk.audit_records import AuditRecordFiles
from troth.network.disk.checkpoints import Checkpoints, Found, Marks
from troth.network.disk.errors import DiskError
from troth.network.disk.journal import Journal
from troth.network.disk.signed_slots import SignedSlotsFile
from troth.protocol.core.records import decode_record
from troth.protocol.core.run import Run
from troth.protocol.core.state import State
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.primitives import Primitives
from troth.training.work import Training, TrainingWork, tensor_digests


class PeerFolder:
    """Claims a folder for one run and opens its files, except the signed slots, which `open_slots` opens."""

    def __init__(
        self, path: Path, run: Digest, work: TrainingWork, *, keep_checkpoints: int, note: Callable[[str], None]
    ) -> None:
        self.path = path
        self._run = run
        self._work = work
        self._note = note
        _claim(path, run)
        self._checkpoints = Checkpoints(path / "checkpoints", run, work, keep=keep_checkpoints)
        self._audit_records = AuditRecordFiles(path / "checkpoints", run, self._checkpoints)
        self.journal = Journal(path / "journal", run, after=self._checkpoints.marks().journal)
        if self.journal.cut:
            note(f"the journal's last line was torn: {self.journal.cut} bytes of it are cut off")
        self.slots: SignedSlotsFile | None = None

    def close(self) -> None:
        if self.slots is not None:
            self.slots.close()
            self.slots = None
        self.journal.close()

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

    @property
    def _slots_path(self) -> Path:
        return self.path / "signed-slots"

    @property
    def _successor_path(self) -> Path:
        return self.path / "successor.key"

    # States

    def last(self, first: State[Training]) -> Found:
        """The newest saved state with its audit records; `first` if there is none."""
        found = self._checkpoints.last(first)
        past = tuple(self._audit_records.onto(state) for state in found.past)
        return Found(self._audit_records.onto(found.state), found.lacks, past)

    def certified(self, step: int) -> list[CertifiedRecord]:
        """The certified records before this step; before the one before it, if its last record is not certified yet."""
        return self.journal.certified(step) or self.journal.certified(step - 1)

    def save_step(self, state: State[Training], *, whole: bool) -> None:
        """Save the state after a step; with its model in any case if `whole`."""
        self._audit_records.save(state)
        self._checkpoints.save(state, self._settled(), whole=whole)

    def save_when_stopping(self, state: State[Training]) -> None:
        """Save state, model and audit records: if all others stop too, nobody else has the model (SPEC B5)."""
        self._audit_records.save(state, whole=True)
        self._checkpoints.save(state, self._settled(), whole=True)

    def _settled(self) -> Marks:
        assert self.slots is not None
        return Marks(self.journal.settle(), self.slots.last)

    # The end

    def save_model(self, run: Run, state: State[Training], last: CertifiedRecord | None) -> bool:
        """Write the model for its users, and the record that proves where it comes from. Whether that record closes the run."""
        self._checkpoints.save(state, self._settled(), whole=True)
        weights = self._work.problem.state_dict(state.training.parameters_D)
        write_bytes(self.path / "model.safetensors", save(weights))
        changes = [] if last is None else self.journal.roster_changes.before(decode_record(last.record).step)
        proof = model_file(run, state.step, tensor_digests(state.training, Primitives()), changes, last)
        write_text(self.path / "model.json", to_text(proof))
        if proof.closed and not proves_model(proof):
            self._note("this peer lacks records of who the members were: use another member's model.json as a proof")
        return proof.closed


def _claim(path: Path, run: Digest) -> None:
    """Make the folder this run's. Raises `DiskError` if it cannot be written to or belongs to another run."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        mark = path / "run"
        if mark.exists() and mark.read_text(encoding="ascii").strip() != run.hex():
            raise DiskError(f"{path} belongs to another run: choose another", wrong_folder=True)
        write_text(mark, run.hex() + "\n")
    except OSError as error:
        raise DiskError(f"cannot write to {path}: {error.strerror}; choose another", wrong_folder=True) from error
