"""Certified records that changed the roster: with them, strangers follow a run from its founders to its end.

The journal deletes old steps; these records stay. They are few, so the file is written whole each time.

Each line has a check digest, and each record names the step of the change before it: a flipped bit is found, and so is a line
that is missing. Both are mended from the journal, as far back as that goes. What cannot be mended is refused and stays as it is:
taken for an empty file, it would be written over, and strangers be told a history that lacks members.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from troth.crypto import tagged_hash
from troth.files import write_bytes
from troth.network.disk.errors import DiskError
from troth.protocol.core.records import StepRecord, decode_record
from troth.protocol.history.record import SignedRecord
from troth.protocol.wire.frames import CertifiedRecord

FILE = "roster-changes.jsonl"
_WAY_OUT = (
    "bring back a copy of this file, or take it from the journal of a member whom you trust: all have the same changes"
)


class RosterChangesError(DiskError):
    """The file is damaged, or lacks a change; the message says where, and names the way out."""


class _Line(msgspec.Struct, forbid_unknown_fields=True):
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
        intact, flaw = _read(raw)
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
    records, flaw = _read(raw)
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


def _read(raw: bytes) -> tuple[dict[int, CertifiedRecord], str]:
    """The records of the lines that are intact, by step, and the first line that is not, in words."""
    records, flaw = dict[int, CertifiedRecord](), ""
    for number, line in enumerate(raw.splitlines(keepends=True), 1):
        try:
            one = _parsed(line)
            step = decode_record(one.record).step
            if records and step <= max(records):
                raise ValueError("an earlier step than in the line before")
            records[step] = one
        except (ValueError, RecursionError, msgspec.MsgspecError):
            flaw = flaw or f"line {number}: the line is damaged, or was changed"
    return records, flaw


def _parsed(raw: bytes) -> CertifiedRecord:
    line = msgspec.json.decode(raw, type=_Line)
    one = SignedRecord(line.record, line.signatures).certified()
    if _line(one) != raw:
        raise ValueError("it is not written the one way such lines are written, or its check digest does not fit")
    return one
