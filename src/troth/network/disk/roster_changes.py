"""Certified records that changed the roster: with them, strangers follow a run from its founders to its end.

The journal deletes old steps; these records stay. They are few, so the file is written whole each time.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from troth.files import write_bytes
from troth.protocol.core.records import decode_record
from troth.protocol.wire.frames import CertifiedRecord

_MOST_BYTES = 64 << 20


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A record and its signatures (hex)."""

    record: str
    signatures: dict[str, str]


class RosterChanges:
    """One peer's file. It proves nothing by itself: whoever uses the records checks their signatures."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records = _read(path)

    def before(self, step: int) -> list[CertifiedRecord]:
        """The changes before this step, in order."""
        return [record for at, record in sorted(self._records.items()) if at < step]

    def since(self, step: int) -> list[CertifiedRecord]:
        """The changes from this step on, in order."""
        return [record for at, record in sorted(self._records.items()) if at >= step]

    def add(self, certified: Sequence[CertifiedRecord]) -> None:
        """Note certified records. One of a step that was made again replaces the old one and all after it (SPEC B6)."""
        records = dict(self._records)
        for one in certified:
            record = decode_record(one.record)
            records = {step: kept for step, kept in records.items() if step < record.step}
            if record.changes_roster:
                records[record.step] = one
        if records != self._records:
            self._records = records
            write_bytes(self._path, b"".join(_line(one) for _, one in sorted(records.items())))


def _line(one: CertifiedRecord) -> bytes:
    signatures = {peer.hex(): signature.hex() for peer, signature in sorted(one.signatures.items())}
    return json.dumps({"record": one.record.hex(), "signatures": signatures}).encode() + b"\n"


def _read(path: Path) -> dict[int, CertifiedRecord]:
    """Records by step; none if the file is damaged: then this peer says at the end that it cannot prove its model."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return {}
        return {decode_record(one.record).step: one for one in _parsed(path.read_bytes())}
    except (OSError, ValueError, msgspec.MsgspecError):
        return {}


def read_exactly(path: Path) -> list[CertifiedRecord]:
    """The records in a file, for people who check them: raises ValueError for anything but what is written there."""
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"the file is longer than {_MOST_BYTES:,} bytes")
    raw = path.read_bytes()
    read = _parsed(raw)
    if b"".join(map(_line, read)) != raw:
        raise ValueError("it is not written the one way changes of the roster are written")
    return read


def _parsed(raw: bytes) -> list[CertifiedRecord]:
    lines = [msgspec.json.decode(line, type=_Line) for line in raw.splitlines()]
    return [
        CertifiedRecord(
            bytes.fromhex(line.record),
            {bytes.fromhex(peer): bytes.fromhex(signature) for peer, signature in line.signatures.items()},
        )
        for line in lines
    ]
