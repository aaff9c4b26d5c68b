"""Everything that was agreed on, in order: an append-only journal, each line chained to the one before.

A line is JSON: its content, and the digest of the chain up to it. Changing, dropping or swapping a line breaks the chain from
there on. Each file holds a fixed number of steps, and the oldest files are deleted. A record and the signatures over it are lines
of their own: signatures may come later.

The whole chain is checked when a peer starts. A journal that ends before the line that the last checkpoint names was cut or
rolled back.

Certified records that changed the roster outlive their steps, in a file of their own: with them, strangers follow a run from its
founders to its end. They are few, so the file is written whole each time. Each line has a check digest, and each record names the
step of the change before it: a flipped bit is found, and so is a line that is missing. Both are mended from the journal, as far
back as that goes. What cannot be mended is refused and stays as it is: taken for an empty file, it would be written over, and
strangers be told a history that lacks members.
"""

import errno
import json
import os
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from troth.crypto import Digest, PeerId, Slot, blob_digest, tagged_hash
from troth.files import sync_folder, write_bytes
from troth.network.disk.lock import DiskError, or_disk_error
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

CHANGES_FILE = "roster-changes.jsonl"
_WAY_OUT = (
    "bring back a copy of this file, or take it from the journal of a member whom you trust: all have the same changes"
)


class _ChangeLine(SignedRecord, frozen=True, forbid_unknown_fields=True):
    check: str  # a digest over the others: it finds accidents


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
        """`journal`: what the journal beside it holds. Raises `DiskError` if the two do not make one whole history, and
        OSError."""
        raw = path.read_bytes() if path.exists() else b""
        intact, flaw = _read_changes(raw)
        journal = journal or JournalRecords()
        self._path = path
        whole = not flaw and not _gap(intact, journal.last)
        self._records = intact if whole else _merged(intact, journal)
        gap = _gap(self._records, journal.last)
        if gap or (flaw and journal.last is None):
            raise DiskError(f"{path}, {flaw or gap}; the journal does not go back so far: {_WAY_OUT}")
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


def read_exactly(path: Path, last: StepRecord | None = None) -> list[CertifiedRecord]:
    """The records in a file, for people who check it; `last` is the newest certified record that is known. Raises ValueError for
    anything but what is written there, and where a change is missing."""
    raw = path.read_bytes() if last is None or path.exists() else b""
    records, flaw = _read_changes(raw)
    if flaw := flaw or _gap(records, last):
        raise ValueError(flaw)
    return list(records.values())


def read_changes(folder: Path, last: StepRecord) -> list[CertifiedRecord]:
    """The same from a journal's folder, for people who want to use them; raises `DiskError`."""
    path = folder / CHANGES_FILE
    try:
        return read_exactly(path, last)
    except (OSError, ValueError) as error:
        mended = "troth join mends it from the journal, if that goes back so far"
        raise DiskError(f"{path}, {error}; {mended}; else {_WAY_OUT}") from error


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
    one = msgspec.json.decode(raw, type=_ChangeLine).certified()
    if _line(one) != raw:
        raise ValueError("it is not written the one way such lines are written, or its check digest does not fit")
    return one


# The journal.

STEPS_PER_FILE = 100
KEPT_FILES = 20  # the newest ones
_FILES_READ = 2  # the last ones, for records that others may ask for
JOURNAL_FILE = re.compile(r"steps-([0-9]{9})\.jsonl")


def journal_files(folder: Path) -> list[Path]:
    """The oldest first."""
    return sorted(path for path in folder.glob("steps-*.jsonl") if JOURNAL_FILE.fullmatch(path.name))


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
        with or_disk_error(f"read and write the journal in {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            held = JournalRecords()
            last = self._check(after, held)
            self.roster_changes = RosterChanges(folder / CHANGES_FILE, held)
            if last:
                self._reopen(last)

    def _check(self, after: Digest | None, held: JournalRecords) -> Path | None:
        """Follow the chain through all files to its end, and note the records; the last file, if there is one."""
        files, chain, records = journal_files(self._folder), None, _Records()
        # The empty chain: that checkpoint was written before anything was agreed on.
        reached = after in (None, self._chain)
        for path in files:
            self._length = 0
            for line in _read(path, chain, last=path == files[-1]):
                if line.number == 1:
                    self._check_begin(path, _begin(path, line.content))
                for one in records.take(path, line):
                    held.add(one)
                chain = line.chain
                self._length += line.length
                reached |= chain == after
        if not reached:
            raise DiskError(
                f"the journal in {self._folder} ends before the last checkpoint: it was cut, or is an older copy; "
                + _way_out(self._folder)
            )
        self._chain = chain or self._chain
        return files[-1] if files else None

    def _check_begin(self, path: Path, begin: Begin) -> None:
        if begin.format != FORMAT:
            raise DiskError(
                f"{path} was written by another version of Troth: use that one, or choose another folder",
                wrong_folder=True,
            )
        if begin.run != self._run.hex():
            raise DiskError(f"{path} is another run's journal: choose another folder", wrong_folder=True)

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
        with self._writing():
            self.roster_changes.add(certified)  # first: a record that is in the journal is not handed in again
        for one in certified:
            step, of, text = decode_record(one.record).step, blob_digest(one.record), SignedRecord.of(one)
            self._write(step, {"kind": "record", "record": text.record})
            self._write(step, {"kind": "signatures", "of": of.hex(), "signatures": text.signatures})
        self.settle()

    def settle(self) -> Digest:
        """Make everything so far last; the end of the chain, for the checkpoint."""
        if self._file is not None and not self._synced:
            with self._writing():
                os.fdatasync(self._file)
            self._synced = True
        return self._chain

    def certified(self, step: int) -> list[CertifiedRecord]:
        """The records before this step, without a gap, as far back as the last files go."""
        files = journal_files(self._folder)[-_FILES_READ:]
        found = {decode_record(one.record).step: one for path in files for one in certified_in(path)}
        first = step
        while first - 1 in found:
            first -= 1
        return [found[k] for k in range(first, step)]

    def _write(self, step: int, entry: dict[str, Any]) -> None:
        with self._writing():
            if self._file is None or step >= self._first + self._steps_per_file:
                self._begin_file(step)
            self._append(entry)

    def _writing(self) -> AbstractContextManager[None]:
        return or_disk_error(f"write to the journal in {self._folder}")

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
        for old in journal_files(self._folder)[: -self._keep]:
            old.unlink()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


# Reading it.


class _Line(NamedTuple):
    """A line whose place in the chain was checked."""

    number: int  # in its file
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
                raise _flaw(path, number, "this is not a line of a journal")
            digest, content = found
            before = _begin(path, content).after if number == 1 else chain
            unbroken = before is not None and next_digest(before, content) == digest
            if not unbroken or (number == 1 and chain not in (None, before)):
                raise _flaw(path, number, "the chain is broken here")
            chain = digest
            yield _Line(number, content, digest, len(raw))


class _Records:
    """Takes a journal's lines, and puts each record together with the signatures over it, which stand behind it."""

    def __init__(self) -> None:
        self._unsigned: Recorded | None = None

    def take(self, path: Path, line: _Line) -> Iterator[CertifiedRecord]:
        if line.number == 1 or is_announced(line.content):  # announcements are most of it
            return
        entry = _decoded(path, line.number, line.content)
        if isinstance(entry, Recorded):
            self._unsigned = entry
            if record_of(CertifiedRecord(entry.raw, {})) is None:
                raise _flaw(path, line.number, "this is no record")
        if isinstance(entry, Signed) and (certified := entry.under(self._unsigned)) is not None:
            yield certified


def certified_in(path: Path) -> Iterator[CertifiedRecord]:
    """The certified records in a file, oldest first; raises `DiskError` where the chain breaks. The peer may be writing a line
    meanwhile."""
    records = _Records()
    for line in _read(path, None, last=True):
        yield from records.take(path, line)


def read_journal(path: Path) -> Iterator[Entry]:
    """What the lines of a file say; raises `DiskError` where the chain breaks, or a line is none that a peer writes."""
    with or_disk_error(f"read {path}", "look after the disk"):
        for line in _read(path, None, last=True):
            yield _decoded(path, line.number, line.content)


def run_of(path: Path) -> str:
    """The run that a file of a journal names."""
    begin = next(read_journal(path), None)
    return begin.run if isinstance(begin, Begin) else ""


def _decoded(path: Path, number: int, content: bytes) -> Entry:
    try:
        return decode(content)
    except EntryError as error:
        raise _flaw(path, number, f"this is not a line of a journal: {error}") from error


def _begin(path: Path, content: bytes) -> Begin:
    begin = _decoded(path, 1, content)
    if not isinstance(begin, Begin):
        raise _flaw(path, 1, "this is not how a file of a journal begins")
    return begin


def _flaw(path: Path, number: int, what: str) -> DiskError:
    return DiskError(f"{path}, line {number}: {what}; {_way_out(path.parent)}")


def _way_out(folder: Path) -> str:
    return (
        f"put the right one back, or move {folder} and the folder checkpoints beside it away: "
        "the others then tell this peer what it missed"
    )
