"""What a peer takes from others to its disk, and what it hands out from there: chunks of a state that is being fetched, so that a
download that was stopped goes on (SPEC J1); an invitation, and a state that members signed, with the proof of that.

Chunk n lies at byte n·2²⁰ of one file, and the index beside it; both are named after the state's digest. Nothing here is
believed: each chunk that is read is checked against the index, and the index against the digest. So a torn file, or one that
somebody wrote into, costs chunks and nothing else.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError
from safetensors.torch import load

from troth.crypto import CHUNK_BYTES, Digest, blob_digest
from troth.evidence.file_format import UnprovedError, to_text
from troth.evidence.model_file import model_file
from troth.evidence.verify_model import verify_state
from troth.files import write_bytes
from troth.network.disk.journal import certified_in, journal_files, read_changes, run_of
from troth.network.disk.lock import DiskError
from troth.protocol.core.records import decode_record
from troth.protocol.core.run import Run
from troth.protocol.recovery.following import Invitation
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import Malformed
from troth.training.work import digest_of_tensors, tensor_digests, training_of

_MOST_INDEX_BYTES = 1 << 26  # of a state of two terabytes


class ChunkFiles:
    """The chunks of at most one state, in a folder of their own. A disk that is full costs the chunks, and not the download."""

    def __init__(self, folder: Path, note: Callable[[str], None] = lambda _text: None) -> None:
        self._folder = folder
        self._note = note
        self._keeps: Digest | None = None  # the state whose chunks are written
        self._file: int | None = None
        self.begun: Digest | None = next(map(_digest, sorted(folder.glob("*.index"))), None)

    def begin(self, digest: Digest, index: bytes) -> None:
        """Keep chunks of this state from here on, and drop those of others."""
        self.clear()
        try:
            self._folder.mkdir(exist_ok=True)
            write_bytes(self._path(digest, "index"), index)
            self._open(digest)
            self.begun = digest
        except OSError as error:
            self._give_up(error)

    def put(self, digest: Digest, number: int, chunk: memoryview) -> None:
        """Keep a chunk, if it is one of the state that was begun. Not synced: a power cut costs chunks."""
        if digest != self._keeps or self._file is None:
            return
        try:
            if os.pwrite(self._file, chunk, number * CHUNK_BYTES) != len(chunk):
                raise OSError(0, "no room")
        except OSError as error:
            self._give_up(error)

    def index(self, digest: Digest) -> bytes | None:
        """The index as it was kept; the chunks of that state are added to from here on."""
        path = self._path(digest, "index")
        try:
            if not path.exists() or path.stat().st_size > _MOST_INDEX_BYTES:
                return None
            raw = path.read_bytes()
            self._open(digest)
        except OSError:
            return None
        return raw

    def chunks(self, digest: Digest, lengths: Mapping[int, int]) -> Iterator[tuple[int, memoryview]]:
        """Bytes at the places of these chunks: right, wrong, or those of a chunk that never came."""
        if digest != self._keeps or self._file is None:
            return
        try:
            for number, length in lengths.items():
                yield number, memoryview(os.pread(self._file, min(length, CHUNK_BYTES), number * CHUNK_BYTES))
        except OSError:
            return

    def clear(self) -> None:
        """Delete everything: the state is whole and saved, or not wanted any more."""
        self.close()
        self.begun = None
        for path in (path for kind in ("index", "chunks", "partial") for path in self._folder.glob(f"*.{kind}")):
            with suppress(OSError):  # whoever cannot delete a file has one too many, and no other trouble
                path.unlink()

    def _open(self, digest: Digest) -> None:
        self.close()
        self._file = os.open(self._path(digest, "chunks"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._keeps = digest

    def close(self) -> None:
        """Keep the chunks for another process."""
        if self._file is not None:
            os.close(self._file)
        self._file = self._keeps = None

    def _give_up(self, error: OSError) -> None:
        self._note(f"cannot keep the download in {self._folder}: {error.strerror}; it goes on, and is lost if stopped")
        self.close()

    def _path(self, digest: Digest, kind: str) -> Path:
        return self._folder / f"{digest.hex()}.{kind}"


def _digest(path: Path) -> Digest | None:
    """The state that a file is named after; None if its name is no digest."""
    try:
        digest = bytes.fromhex(path.stem)
    except ValueError:
        return None
    return Digest(digest) if len(digest) == 32 else None


# What a peer's folder proves to others, also while the peer trains: how the members changed, and a state that they signed.


def invitation_from(folder: Path) -> tuple[Digest, Invitation]:
    """The run that a peer's folder belongs to, and an invitation into it as it was after its last certified record (SPEC J9)."""
    with _peers_folder(folder):
        run = _run_of(folder)
        last = next(_certified(folder), None)
    if last is None:
        raise DiskError(f"{folder}: no step is certified there yet, so there is nothing to invite to; wait for one")
    record = decode_record(last.record)
    # All of them: with one less, this would be an invitation into another history.
    changes = read_changes(folder / "journal", record)
    return run, Invitation.to(
        run, record.step, [(decode_record(one.record).step, blob_digest(one.record)) for one in changes]
    )


def proven_state(folder: Path, run: Run) -> tuple[bytes, str]:
    """The newest checkpoint in a peer's folder that enough members of this run signed, and the proof of that, as text. The peer
    may be training there."""
    with _peers_folder(folder), ExitStack() as open_files:
        # Before the journal is read, which takes longer than a step: the peer deletes its older checkpoints meanwhile.
        newest_first = [*_opened(folder, open_files)]
        if _run_of(folder) != run.id:
            raise DiskError(f"{folder} belongs to another run than the manifest that it should continue")
        oldest_first = list(_certified(folder))[::-1]
        signed = {decode_record(one.record).state_after: one for one in oldest_first}  # by the newest that names it
        changes = read_changes(folder / "journal", decode_record(oldest_first[-1].record)) if oldest_first else []
        for file in newest_first:
            raw = file.read()
            if (proof := _proof(file.name, raw, run, signed, changes)) is not None:
                return raw, proof
    raise DiskError(f"{folder}: enough members signed none of the states there; take another member's folder")


@contextmanager
def _peers_folder(folder: Path) -> Iterator[None]:
    try:
        yield
    except DiskError:
        raise
    except (OSError, ValueError) as error:
        raise DiskError(
            f"{folder} is no peer's folder, or is damaged: name the one that `troth join` writes to"
        ) from error


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
    for path in reversed(journal_files(folder / "journal")):
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


def _certified(folder: Path) -> Iterator[CertifiedRecord]:
    """The records over which the journal holds signatures, newest first."""
    for path in reversed(journal_files(folder / "journal")):
        try:
            found = list(certified_in(path))
        except FileNotFoundError:
            return  # its peer deleted it meanwhile: it is the oldest
        yield from reversed(found)
