"""Everything that was agreed on, in order: an append-only journal, each line chained to the one before.

A line is JSON: its content, and the digest of the chain up to it. Changing, dropping or swapping a line breaks the chain from
there on. Each file holds a fixed number of steps, and the oldest files are deleted. A record and the signatures over it are lines
of their own: signatures may come later.

The whole chain is checked when a peer starts. A journal that ends before the line that the last checkpoint names was cut or
rolled back.
"""

import errno
import json
import os
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from troth.crypto import Digest, PeerId, Slot, blob_digest, tagged_hash
from troth.files import sync_folder, write_bytes
from troth.network.disk.lock import DiskError
from troth.protocol.core.records import StepRecord, decode_record
from troth.protocol.history import (
    FORMAT,
    Begin,
    Entry,
    EntryError,
    Recorded,
    Signed,
    SignedRecord,
    chain_of,
    decode,
    first_digest,
    is_announced,
    next_digest,
    record_of,
)
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import Announced

# Certified records that changed the roster: with them, strangers follow a run from its founders to its end.
#
# The journal deletes old steps; these records stay. They are few, so the file is written whole each time.
#
# Each line has a check digest, and each record names the step of the change before it: a flipped bit is found, and so is a
# line that is missing. Both are mended from the journal, as far back as that goes. What cannot be mended is refused and stays
# as it is: taken for an empty file, it would be written over, and strangers be told a history that lacks members.


FILE = "roster-changes.jsonl"
_WAY_OUT = (
    "bring back a copy of this file, or take it from the journal of a member whom you trust: all have the same changes"
)


class RosterChangesError(DiskError):
    """The file is damaged, or lacks a change; the message says where, and names the way out."""


class _ChangeLine(msgspec.Struct, forbid_unknown_fields=True):
    """A record and its signatures (hex), and a digest over both: it finds accidents."""

    record: str
    signatures: dict[str, str]
    check: str


class JournalRecords:
    """What a journal holds of the run, whose oldest steps are deleted."""

    def __init__(self) -> None:
        self.steps: set[int] = set()
        self.changes: dict[int, CertifiedRecord] = {}
        self.last: StepRecord | None = None

    def add(self, certified: CertifiedRecord) -> None:
        """Note the next record. One of a step that was made again replaces the old one and all after it (SPEC B6)."""
        record = decode_record(certified.record)
        if self.last is not None and record.step <= self.last.step:
            self.steps = {step for step in self.steps if step < record.step}
        self.steps.add(record.step)
        self.changes = _replaced(self.changes, certified, record)
        self.last = record


class RosterChanges:
    """One peer's file. It proves nothing by itself: whoever uses the records checks their signatures."""

    def __init__(self, path: Path, journal: JournalRecords | None = None) -> None:
        """`journal`: what the journal beside it holds. Raises `RosterChangesError` if the two do not make one whole history, and
        OSError."""
        raw = path.read_bytes() if path.exists() else b""
        intact, flaw = _read_changes(raw)
        journal = journal or JournalRecords()
        self._path = path
        whole = not flaw and not _gap(intact, journal.last)
        self._records = intact if whole else _merged(intact, journal)
        gap = _gap(self._records, journal.last)
        if gap or (flaw and journal.last is None):
            raise RosterChangesError(f"{path}, {flaw or gap}; the journal does not go back so far: {_WAY_OUT}")
        self.mended = _text(self._records.values()) != raw  # from the journal
        if self.mended:
            self._write()

    def before(self, step: int) -> list[CertifiedRecord]:
        """The changes before this step, in order."""
        return [record for at, record in sorted(self._records.items()) if at < step]

    def since(self, step: int) -> list[CertifiedRecord]:
        """The changes from this step on, in order."""
        return [record for at, record in sorted(self._records.items()) if at >= step]

    def add(self, certified: Sequence[CertifiedRecord]) -> None:
        """Note certified records. One of a step that was made again replaces the old one and all after it (SPEC B6)."""
        records = self._records
        for one in certified:
            records = _replaced(records, one, decode_record(one.record))
        if records != self._records:
            self._records = records
            self._write()

    def _write(self) -> None:
        write_bytes(self._path, _text(self._records.values()))


def damaged(path: Path, flaw: str) -> RosterChangesError:
    """For those who only read the file."""
    return RosterChangesError(
        f"{path}, {flaw}; troth join mends it from the journal, if that goes back so far; else {_WAY_OUT}"
    )


def read_exactly(path: Path, last: StepRecord | None = None) -> list[CertifiedRecord]:
    """The records in a file, for people who check it; `last` is the newest certified record that is known. Raises ValueError for
    anything but what is written there, and where a change is missing."""
    raw = path.read_bytes() if last is None or path.exists() else b""
    records, flaw = _read_changes(raw)
    if flaw := flaw or _gap(records, last):
        raise ValueError(flaw)
    return list(records.values())


def _replaced(
    records: dict[int, CertifiedRecord], certified: CertifiedRecord, record: StepRecord
) -> dict[int, CertifiedRecord]:
    kept = {step: one for step, one in records.items() if step < record.step}
    return {**kept, record.step: certified} if record.changes_roster else kept


def _merged(found: dict[int, CertifiedRecord], journal: JournalRecords) -> dict[int, CertifiedRecord]:
    """The changes of a file and its journal, in order. Where both speak of a step, the journal is right: a power cut came between
    the two. Later changes than the journal's that do not follow are left out: they are handed in again."""
    older = {step: one for step, one in found.items() if step not in journal.steps}
    merged, changed = dict[int, CertifiedRecord](), -1
    for step, one in sorted({**older, **journal.changes}.items()):
        record = decode_record(one.record)
        if journal.last is not None and step > journal.last.step and record.changed != changed:
            break
        merged[step], changed = one, step
    return merged


def _gap(records: dict[int, CertifiedRecord], last: StepRecord | None) -> str:
    """The first change that is missing, in words; `last` is the newest certified record that is known."""
    changed, known = -1, [decode_record(one.record) for one in records.values()]
    if last is not None and last.step not in records:
        if last.changes_roster:
            return f"step {last.step}: this change of the members is missing"
        known = sorted((*known, last), key=lambda record: record.step)
    for record in known:
        if record.changed != changed:
            return f"step {max(record.changed, changed)}: a change of the members is missing there, or does not belong there"
        changed = record.step if record.changes_roster else changed
    return ""


def _text(records: Iterable[CertifiedRecord]) -> bytes:
    return b"".join(map(_line, records))


def _line(one: CertifiedRecord) -> bytes:
    said = msgspec.to_builtins(SignedRecord.of(one))
    check = tagged_hash("troth/roster-change/1", json.dumps(said).encode()).hex()
    return json.dumps(said | {"check": check}).encode() + b"\n"


def _read_changes(raw: bytes) -> tuple[dict[int, CertifiedRecord], str]:
    """The records of the lines that are intact, by step, and the first line that is not, in words."""
    records, flaw = dict[int, CertifiedRecord](), ""
    for number, line in enumerate(raw.splitlines(keepends=True), 1):
        try:
            one = _parsed_change(line)
            step = decode_record(one.record).step
            if records and step <= max(records):
                raise ValueError("an earlier step than in the line before")
            records[step] = one
        except (ValueError, RecursionError, msgspec.MsgspecError):
            flaw = flaw or f"line {number}: the line is damaged, or was changed"
    return records, flaw


def _parsed_change(raw: bytes) -> CertifiedRecord:
    line = msgspec.json.decode(raw, type=_ChangeLine)
    one = SignedRecord(line.record, line.signatures).certified()
    if _line(one) != raw:
        raise ValueError("it is not written the one way such lines are written, or its check digest does not fit")
    return one


STEPS_PER_FILE = 100
KEPT_FILES = 20  # the newest ones
_FILES_READ = 2  # the last ones, for records that others may ask for
FILE_NAME = re.compile(r"steps-([0-9]{9})\.jsonl")


class JournalError(DiskError):
    """The journal cannot be written, is not this run's, or was changed; the message says where, and names the way out."""


class Journal:
    """One peer's journal. Nothing on disk is changed before all of it was found to be in order."""

    def __init__(
        self,
        folder: Path,
        run: Digest,
        *,
        after: Digest | None = None,
        steps_per_file: int = STEPS_PER_FILE,
        keep_files: int = KEPT_FILES,
    ) -> None:
        """`after` is the end of the chain at the last checkpoint."""
        self._folder = folder
        self._run = run
        self._steps_per_file = steps_per_file
        self._keep = keep_files
        self._chain = first_digest(run)
        self._file: int | None = None
        self._length = 0  # of the open file, in bytes
        self._synced = True
        self._first = -1  # step in the open file
        self.cut = 0  # bytes of a torn last line
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held = JournalRecords()
            last = self._check(after, held)
            self.roster_changes = RosterChanges(folder / FILE, held)
            if last:
                self._reopen(last)
        except OSError as error:
            raise JournalError(f"cannot read and write the journal in {folder}: {error.strerror}") from error

    def _files(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("steps-*.jsonl") if FILE_NAME.fullmatch(path.name))

    def _check(self, after: Digest | None, held: JournalRecords) -> Path | None:
        """Follow the chain through all files to its end, and note the records; the last file, if there is one."""
        files, chain, records = self._files(), None, _Records()
        # The empty chain: that checkpoint was written before anything was agreed on.
        reached = after in (None, self._chain)
        for path in files:
            self._length = 0
            for number, line in enumerate(_read(path, chain, last=path == files[-1]), 1):
                if number == 1:
                    self._check_begin(path, line.content)
                for one in records.take(path, number, line.content):
                    held.add(one)
                chain = line.chain
                self._length += line.length
                reached |= chain == after
        if not reached:
            raise JournalError(
                f"the journal in {self._folder} ends before the last checkpoint: it was cut, or is an older copy; "
                + _way_out(self._folder)
            )
        self._chain = chain or self._chain
        return files[-1] if files else None

    def _check_begin(self, path: Path, content: bytes) -> None:
        begin = _parsed(path, 1, content)
        if begin.get("format") != FORMAT:
            raise JournalError(
                f"{path} was written by another version of Troth: use that one, or choose another folder",
                wrong_folder=True,
            )
        if begin.get("run") != self._run.hex():
            raise JournalError(f"{path} is another run's journal: choose another folder", wrong_folder=True)

    def _reopen(self, path: Path) -> None:
        """Go on with the last file. A line that a power cut tore is cut off; a file that holds nothing else is deleted."""
        self.cut = path.stat().st_size - self._length
        if not self._length:
            path.unlink()
            return
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        if self.cut:
            os.ftruncate(self._file, self._length)
            os.fsync(self._file)
        self._first = int(path.stem.removeprefix("steps-"))

    def announced(self, slot: Slot, announcements: Mapping[PeerId, Announced]) -> None:
        """Write down everyone's announcement for a slot."""
        envelopes = {
            peer.hex(): [b64encode(one.envelope.payload).decode(), b64encode(one.envelope.signature).decode()]
            for peer, one in announcements.items()
        }
        where = [slot.step, slot.attempt, slot.phase, slot.incarnation]
        self._write(slot.step, {"kind": "announced", "slot": where, "said": envelopes})

    def recorded(self, certified: Sequence[CertifiedRecord]) -> None:
        """Write down records and the signatures over them, for good: this peer's own, when they are certified, and those that
        others made while it was gone."""
        try:
            self.roster_changes.add(certified)  # first: a record that is in the journal is not handed in again
        except OSError as error:
            raise JournalError(f"cannot write to the journal in {self._folder}: {error.strerror}") from error
        for one in certified:
            step, signed = decode_record(one.record).step, sorted(one.signatures.items())
            self._write(step, {"kind": "record", "record": one.record.hex()})
            signatures = {peer.hex(): signature.hex() for peer, signature in signed}
            self._write(step, {"kind": "signatures", "of": blob_digest(one.record).hex(), "signatures": signatures})
        self.settle()

    def settle(self) -> Digest:
        """Make everything so far last; the end of the chain, for the checkpoint."""
        if self._file is not None and not self._synced:
            try:
                os.fdatasync(self._file)
            except OSError as error:
                raise JournalError(f"cannot write to the journal in {self._folder}: {error.strerror}") from error
            self._synced = True
        return self._chain

    def certified(self, step: int) -> list[CertifiedRecord]:
        """The records before this step, without a gap, as far back as the last files go."""
        files = self._files()[-_FILES_READ:]
        found = {decode_record(one.record).step: one for path in files for one in certified_in(path)}
        first = step
        while first - 1 in found:
            first -= 1
        return [found[k] for k in range(first, step)]

    def _write(self, step: int, entry: dict[str, Any]) -> None:
        try:
            if self._file is None or step >= self._first + self._steps_per_file:
                self._begin_file(step)
            self._append(entry)
        except OSError as error:
            raise JournalError(f"cannot write to the journal in {self._folder}: {error.strerror}") from error

    def _append(self, entry: dict[str, Any]) -> None:
        """Append a whole line or nothing: lines after half a line would not be read again."""
        assert self._file is not None
        content = json.dumps(entry, sort_keys=True).encode()
        chain = next_digest(self._chain, content)
        line = b'{"chain": "%s", "what": %s}\n' % (chain.hex().encode(), content)
        if os.write(self._file, line) < len(line):
            os.ftruncate(self._file, self._length)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._chain, self._length, self._synced = chain, self._length + len(line), False

    def _begin_file(self, step: int) -> None:
        self.settle()  # else a power cut might tear this file and spare the next
        self.close()
        self._first = step - step % self._steps_per_file
        path = self._folder / f"steps-{self._first:09}.jsonl"
        self._file, self._length = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), 0
        self._append({"kind": "begin", "format": FORMAT, "run": self._run.hex(), "after": self._chain.hex()})
        sync_folder(self._folder)
        for old in self._files()[: -self._keep]:
            old.unlink()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class _Records:
    """Takes a journal's lines, and puts each record together with the signatures over it, which stand behind it."""

    def __init__(self) -> None:
        self._unsigned: Recorded | None = None

    def take(self, path: Path, number: int, content: bytes) -> Iterator[CertifiedRecord]:
        if number == 1 or is_announced(content):  # announcements are most of it
            return
        entry = _decoded(path, number, content)
        if isinstance(entry, Recorded):
            self._unsigned = entry
            if record_of(CertifiedRecord(entry.raw, {})) is None:
                raise JournalError(f"{path}, line {number}: this is no record; {_way_out(path.parent)}")
        if isinstance(entry, Signed) and (certified := entry.under(self._unsigned)) is not None:
            yield certified


def certified_in(path: Path) -> Iterator[CertifiedRecord]:
    """The certified records in a file, oldest first; raises `JournalError` where the chain breaks. The peer may be writing a line
    meanwhile."""
    records = _Records()
    for number, line in enumerate(_read(path, None, last=True), 1):
        yield from records.take(path, number, line.content)


def read_journal(path: Path) -> Iterator[Entry]:
    """What the lines of a file say; raises `JournalError` where the chain breaks, or a line is none that a peer writes."""
    try:
        for number, line in enumerate(_read(path, None, last=True), 1):
            yield _decoded(path, number, line.content)
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error


def _decoded(path: Path, number: int, content: bytes) -> Entry:
    try:
        return decode(content)
    except EntryError as error:
        what = f"this is not a line of a journal: {error}"
        raise JournalError(f"{path}, line {number}: {what}; {_way_out(path.parent)}") from error


def run_of(path: Path) -> str:
    """The run that a file of a journal names."""
    begin = next(read_journal(path), None)
    return begin.run if isinstance(begin, Begin) else ""


class _Line(NamedTuple):
    """A line whose place in the chain was checked."""

    content: bytes
    chain: Digest
    length: int  # in bytes


def _read(path: Path, chain: Digest | None, *, last: bool) -> Iterator[_Line]:
    """A file's lines, as far as the chain holds; `chain` is its digest before this file, None if that is unknown.

    Only the last line of the last file may be torn; it is left out.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if last and not raw.endswith(b"\n"):
                return
            found = chain_of(raw.removesuffix(b"\n"))
            if found is None:
                raise JournalError(f"{path}, line {number}: this is not a line of a journal; {_way_out(path.parent)}")
            digest, content = found
            before = _chain_before(path, content) if number == 1 else chain
            if (
                (number == 1 and chain not in (None, before))
                or before is None
                or next_digest(before, content) != digest
            ):
                raise JournalError(f"{path}, line {number}: the chain is broken here; {_way_out(path.parent)}")
            chain = digest
            yield _Line(content, digest, len(raw))


def _chain_before(path: Path, content: bytes) -> Digest | None:
    """The chain up to this file, as its first line names it."""
    named = _parsed(path, 1, content).get("after")
    return Digest(bytes.fromhex(named)) if isinstance(named, str) and re.fullmatch("[0-9a-f]{64}", named) else None


def _parsed(path: Path, number: int, content: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise JournalError(f"{path}, line {number}: this is not a line of a journal; {_way_out(path.parent)}")
    return parsed


def _way_out(folder: Path) -> str:
    return (
        f"put the right one back, or move {folder} and the folder checkpoints beside it away: "
        "the others then tell this peer what it missed"
    )
