"""Files of a folder that a stranger may have filled: ordinary files only, of bounded size, in the one form that is written; and
the checks of the small ones, and of the model."""

import json
import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from troth.api.verify import AgreedTask, read_text
from troth.audit.report import AuditReport, Check
from troth.audit.walk import Walked
from troth.crypto import Digest
from troth.evidence.file_format import RecomputeError
from troth.evidence.model_file import ModelFile, from_text
from troth.evidence.verify_model import ModelProof, check_weights, verify_model
from troth.network.disk import journal, signing
from troth.protocol.broadcast.link import NO_SLOT, SlotKey
from troth.protocol.core.run import Run
from troth.protocol.history import Flaw, follow_changes, step_of
from troth.protocol.recovery.restart import proven, tip_of
from troth.protocol.wire.frames import CertifiedRecord, RestartCertificate
from troth.protocol.wire.primitives import Primitives

MOST_FILES = 10_000  # of one kind in one folder
_HEADER = 16 << 20  # the most bytes of names and shapes in a file of tensors


class FileError(ValueError):
    """A file that cannot be used; the message says why."""


def files_in(folder: Path, pattern: str) -> list[Path]:
    """Files of one kind, in the order of their names; none if the folder is not there."""
    return sorted(islice(_matching(folder, pattern), MOST_FILES))


def _matching(folder: Path, pattern: str) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            yield from (folder / entry.name for entry in entries if fnmatchcase(entry.name, pattern))
    except (FileNotFoundError, NotADirectoryError):
        return


def check_ordinary(path: Path, most: int) -> None:
    """Raise `FileError` unless this is an ordinary file of at most so many bytes: a pipe would block, a device never ends."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise FileError("this is no ordinary file")
    if found.st_size > most:
        raise FileError(f"{found.st_size:,} bytes are more than such a file has")


def read_bytes(path: Path, most: int) -> bytes:
    check_ordinary(path, most)
    with path.open("rb") as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise FileError(f"more than {most:,} bytes are more than such a file has")
    return raw


def load_tensors(path: Path, most: int) -> dict[str, Tensor]:
    """Tensors of a file whose header is written in its one form: nothing in it goes unread."""
    from safetensors.torch import load_file

    check_ordinary(path, most)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(min(length, _HEADER + 1))
    if len(header) != length:
        raise FileError("its header is cut, or too long")
    _check_header(header)
    try:
        return load_file(path)
    except Exception as error:  # the reader has no error type of its own
        raise FileError(f"it is damaged: {error}") from error


def _check_header(header: bytes) -> None:
    try:
        named: Any = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise FileError("its header is damaged") from error
    written = json.dumps(named, separators=(",", ":"), ensure_ascii=False).encode()
    padded = written + b" " * (-len(written) % 8)
    if header != padded or not isinstance(named, dict) or "__metadata__" in named:
        raise FileError("its header is not written the one way headers are written")


# Small files of a peer's folder: the run's mark, the changes of members, and the slots that this peer signed.


_MOST_CHANGES = 64 << 20
_MOST_SLOTS = 1 << 20
_MOST_CERTIFICATE = 1 << 20


def check_mark(folder: Path, run: Digest, report: AuditReport) -> None:
    """The file `run` names the run, and nothing else."""
    with report.faults(Check.FILES, folder / "run", absent="it is not there"):
        if read_bytes(folder / "run", 1 << 10) != f"{run.hex()}\n".encode():
            raise FileError("it does not name this run, or not in the way it is written")
        report.passed(Check.FILES)


def read_changes(path: Path, report: AuditReport) -> list[CertifiedRecord] | None:
    """Records that changed the roster; None if the file is not there, or is wrong."""
    found: list[CertifiedRecord] | None = None
    if os.path.lexists(path):
        with report.faults(Check.FILES, path):
            check_ordinary(path, _MOST_CHANGES)
            found = journal.read_exactly(path)
    return found


def check_changes(
    path: Path, run: Run, changes: list[CertifiedRecord] | None, walked: Walked, report: AuditReport
) -> None:
    """All changes of members since the founders, signed, and those of the journal among them."""
    expected = [walked.raw[step] for step, record in sorted(walked.records.items()) if record.changes_roster]
    if changes is None:
        if expected and not path.exists():
            report.wrong(Check.FILES, str(path), "it is not there, and members changed")
        return
    with report.faults(Check.FILES, path):
        later = [(number, one) for number, one in enumerate(changes, 1) if step_of(one) >= walked.first]
        for (number, one), raw in zip(later, expected, strict=False):
            if one.record != raw:
                raise FileError(f"line {number}: the journal holds another record of this change")
        if len(later) > len(expected) and not walked.broken:
            number, extra = later[len(expected)]
            what = "of which the journal holds no record: it was cut, or this line was added"
            raise FileError(f"line {number}: members changed in step {step_of(extra)}, {what}")
        if len(later) < len(expected):
            raise FileError("it lacks a change of members that the journal holds")
        if isinstance(found := follow_changes(run, changes, Primitives()), Flaw):
            raise FileError(f"the changes do not follow from the founders: {found.reason}")
        report.passed(Check.FILES)


def check_slots(path: Path, report: AuditReport) -> SlotKey | None:
    """The slots that this peer signed, each later than the one before; the last one (SPEC B1). None if that is not known."""
    last: SlotKey | None = None
    with report.faults(Check.FILES, path, absent="it is not there"):
        last = [NO_SLOT, *signing.read_exactly(read_bytes(path, _MOST_SLOTS))][-1]
        report.passed(Check.FILES)
    return last


def check_restart(path: Path, run: Run, walked: Walked, report: AuditReport) -> None:
    """The certificate of the last restart that this peer began with, if there was one (SPEC B5)."""
    if not path.exists():
        return
    with report.faults(Check.FILES, path):
        raw = read_bytes(path, _MOST_CERTIFICATE)
        begun = msgspec.msgpack.decode(raw, type=RestartCertificate, strict=True)
        state = walked.states.get(begun.step)
        if msgspec.msgpack.encode(begun) != raw:
            raise FileError("it is not written the one way certificates are written")
        if state is None:
            report.skipped(str(path), f"the journal leads to no state before step {begun.step}")
            return
        roster, tip = state.roster, tip_of(run, state, state.model)
        if proven(begun, tip, roster.members, roster.quorum, Primitives()) != begun:
            raise FileError("it is no restart certificate of the state that the records lead to")
        report.passed(Check.FILES)


# The model of the run: `model.json` and the weights beside it, held against the journal's last record (SPEC E4).


_MOST_WEIGHTS = 1 << 42  # bytes; `check_weights` knows the model's size


def check_model(folder: Path, run: Run, walked: Walked, task: AgreedTask | None, report: AuditReport) -> None:
    """Check the certificate and the weights, as `troth verify` does, and that the journal leads to them."""
    path = folder / "model.json"
    if not path.exists():
        if walked.last is not None and walked.last.closing:
            report.skipped(str(path), "it is not there, though the run is closed")
        else:
            report.skipped("the run's model", "the run is not closed, so nobody has signed one")
        return
    with report.faults(Check.MODEL, path):
        file = from_text(read_text(path))
        _check_place(file, walked)
        if not file.closed:
            report.skipped("the run's model", "it ended unclosed: too few signed its last record")
            return
        proof = verify_model(read_text(path), run.id)
        _check_weights(folder / "model.safetensors", proof, task, report)


def _check_place(file: ModelFile, walked: Walked) -> None:
    """Raise `FileError` unless the certificate's records are the journal's."""
    if walked.broken:
        return
    last = walked.last
    here = {raw.hex(): step for step, raw in walked.raw.items()}
    if file.record and (last is None or here.get(file.record) != last.step):
        raise FileError(
            "its last record is not the journal's last: the journal was cut, or the certificate is of another history"
        )
    shown = [one.record for one in file.history if one.record in here]
    expected = [
        raw.hex()
        for step, raw in sorted(walked.raw.items())
        if walked.records[step].changes_roster and raw.hex() != file.record
    ]
    if walked.first == 0 and [one.record for one in file.history] != expected:
        raise FileError("the changes of members in it are not those of the journal")
    if shown != expected:
        raise FileError("it lacks a change of members that the journal holds")


def _check_weights(path: Path, proof: ModelProof, task: AgreedTask | None, report: AuditReport) -> None:
    if task is None:
        report.skipped(str(path), "the task is not run, as asked, so nobody can tell which weight is which")
        return
    with report.faults(Check.MODEL, path):
        try:
            load_tensors(path, _MOST_WEIGHTS)
            check_weights(proof, task.for_weights(proof.run), path)
            report.passed(Check.MODEL)
        except FileNotFoundError as error:
            raise FileError("it is not there, and model.json is about it") from error
        except RecomputeError as error:
            report.skipped(str(path), f"it can be told only with the task which weight is which: {error}")
