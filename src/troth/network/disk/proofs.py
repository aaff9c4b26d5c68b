"""What a peer's folder proves to others, also while the peer trains: how the members changed, and a state that they signed."""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError
from safetensors.torch import load

from troth.crypto import Digest, blob_digest
from troth.evidence.errors import UnprovedError
from troth.evidence.file_format import to_text
from troth.evidence.model_file import model_file
from troth.evidence.verify_model import verify_state
from troth.network.disk.errors import DiskError
from troth.network.disk.journal import FILE_NAME, certified_in, run_of
from troth.network.disk.roster_changes import FILE, damaged, read_exactly
from troth.protocol.core.records import StepRecord, decode_record
from troth.protocol.core.run import Run
from troth.protocol.recovery.invitation import Invitation
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import Malformed
from troth.training.work import digest_of_tensors, tensor_digests, training_of


def invitation_from(folder: Path) -> tuple[Digest, Invitation]:
    """The run that a peer's folder belongs to, and an invitation into it as it was after its last certified record (SPEC J9)."""
    try:
        run = _run_of(folder)
        last = next(_certified(folder), None)
    except DiskError:
        raise
    except (OSError, ValueError) as error:
        raise _no_folder(folder) from error
    if last is None:
        raise DiskError(f"{folder}: no step is certified there yet, so there is nothing to invite to; wait for one")
    record = decode_record(last.record)
    named = [(decode_record(one.record).step, blob_digest(one.record)) for one in _changes(folder, record)]
    return run, Invitation.to(run, record.step, named)


def proven_state(folder: Path, run: Run) -> tuple[bytes, str]:
    """The newest checkpoint in a peer's folder that enough members of this run signed, and the proof of that, as text. The peer
    may be training there."""
    try:
        with ExitStack() as open_files:
            # Before the journal is read, which takes longer than a step: the peer deletes its older checkpoints meanwhile.
            newest_first = [*_opened(folder, open_files)]
            other = _run_of(folder) != run.id
            oldest_first = list(_certified(folder))[::-1]
            signed = {decode_record(one.record).state_after: one for one in oldest_first}  # by the newest that names it
            changes = _changes(folder, decode_record(oldest_first[-1].record)) if oldest_first else []
            for file in () if other else newest_first:
                raw = file.read()
                proof = _proof(file.name, raw, run, signed, changes)
                if proof is not None:
                    return raw, proof
    except DiskError:
        raise
    except (OSError, ValueError) as error:
        raise _no_folder(folder) from error
    if other:
        raise DiskError(f"{folder} belongs to another run than the manifest that it should continue")
    raise DiskError(f"{folder}: enough members signed none of the states there; take another member's folder")


def _opened(folder: Path, files: ExitStack) -> Iterator[BinaryIO]:
    """The checkpoints, newest first; a file that is open can be read after it was deleted."""
    for path in sorted(folder.glob("checkpoints/step-*.safetensors"), reverse=True):
        with suppress(FileNotFoundError):
            yield files.enter_context(path.open("rb"))


def _proof(
    name: str, raw: bytes, run: Run, signed: dict[bytes, CertifiedRecord], changes: list[CertifiedRecord]
) -> str | None:
    try:
        training = training_of(load(raw))
    except SafetensorError as error:
        raise ValueError(f"{name}: {error}") from error
    if isinstance(training, Malformed):
        return None
    tensors = tensor_digests(training)
    last = signed.get(digest_of_tensors(tensors))
    if last is None:
        return None
    step = decode_record(last.record).step
    before = [change for change in changes if decode_record(change.record).step < step]
    text = to_text(model_file(run, step + 1, tensors, before, last))
    try:
        verify_state(text, run.id)
    except UnprovedError:
        return None
    return text


def _run_of(folder: Path) -> Digest:
    named = (folder / "run").read_text(encoding="ascii").strip()
    for path in _journal(folder):
        try:
            other = run_of(path)
        except DiskError:
            if path.exists():
                raise
            break  # its peer deleted it meanwhile: it is the oldest
        if other != named:
            raise DiskError(
                f"{folder / 'run'} names another run than {path} ({other[:16]}): one was changed, or is of another folder; "
                "put the right one back"
            )
    return Digest(bytes.fromhex(named))


def _changes(folder: Path, last: StepRecord) -> list[CertifiedRecord]:
    """All changes of the members up to the last record: with one less, an invitation would be into another history."""
    path = folder / "journal" / FILE
    try:
        return read_exactly(path, last)
    except (OSError, ValueError) as error:
        raise damaged(path, str(error)) from error


def _certified(folder: Path) -> Iterator[CertifiedRecord]:
    """The records over which the journal holds signatures, newest first."""
    for path in _journal(folder):
        try:
            found = list(certified_in(path))
        except FileNotFoundError:
            return  # its peer deleted it meanwhile: it is the oldest
        yield from reversed(found)


def _journal(folder: Path) -> list[Path]:
    """The newest first."""
    files = (path for path in (folder / "journal").iterdir() if FILE_NAME.fullmatch(path.name))
    return sorted(files, reverse=True)


def _no_folder(folder: Path) -> DiskError:
    return DiskError(f"{folder} is no peer's folder, or is damaged: name the one that `troth join` writes to")
