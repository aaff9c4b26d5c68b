"""The journal, read strictly: every line in the one way it is written, each chained to the one before (SPEC E5).

Nothing in it is believed. The chain finds accidents and clumsy changes; whoever rewrites the file can make a new chain, and
then signatures are what is left.
"""

import json
import re
import stat
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from troth.audit.report import Check, Report
from troth.crypto import Digest, PeerId, Slot, valid_peer
from troth.network.disk.journal import FILE_NAME, FORMAT, KEPT_FILES, LINE, STEPS_PER_FILE, first_digest, next_digest
from troth.protocol.history.record import exact_bytes
from troth.protocol.wire.messages import (
    ATTEMPTS_PER_MEMBER,
    MOST_MEMBERS,
    Envelope,
    Incarnation,
    Phase,
    Step,
)
from troth.protocol.wire.phases import PHASES, most_bytes

MOST_LINE = 1 << 28  # bytes; sixteen members' reports take 50 KB
MOST_FILES = 10_000
_DIGEST = re.compile("[0-9a-f]{64}")


class EntryError(ValueError):
    """A line that no peer writes; the message says why."""


@dataclass(frozen=True)
class Place:
    """File and line of an entry."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


@dataclass(frozen=True)
class Said:
    """Everyone's announcement for a slot; nothing about the envelopes was checked."""

    place: Place
    slot: Slot
    envelopes: dict[PeerId, Envelope]


@dataclass(frozen=True)
class Recorded:
    """A record as bytes."""

    place: Place
    raw: bytes


@dataclass(frozen=True)
class Signed:
    """Signatures under a record that stands before."""

    place: Place
    record: Digest
    signatures: dict[PeerId, bytes]


Entry = Said | Recorded | Signed


class _Line(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind"):
    pass


class _Begin(_Line, tag="begin"):
    format: str
    run: str
    after: str


_Attempt = Annotated[int, msgspec.Meta(ge=0, lt=ATTEMPTS_PER_MEMBER * MOST_MEMBERS)]
_Pair = tuple[str, str]


class _Announced(_Line, tag="announced"):
    slot: tuple[Step, _Attempt, Phase, Incarnation]
    said: Annotated[dict[str, _Pair], msgspec.Meta(max_length=MOST_MEMBERS)]


class _Record(_Line, tag="record"):
    record: str


class _Signatures(_Line, tag="signatures"):
    of: str
    signatures: Annotated[dict[str, str], msgspec.Meta(max_length=MOST_MEMBERS)]


_DECODER = msgspec.json.Decoder(_Begin | _Announced | _Record | _Signatures, strict=True)


class JournalReader:
    """The files of one journal, in order. Faults go to the report, each with its file and line; reading goes on behind them."""

    def __init__(self, folder: Path, run: Digest, report: Report) -> None:
        self._run = run
        self._report = report
        self._chain: Digest | None = None  # up to the last line; None behind a line that could not be read
        names = sorted(path.name for path in folder.iterdir() if path.name.startswith("steps-"))
        self.files = [folder / name for name in names if FILE_NAME.fullmatch(name)]
        self.chains: set[Digest] = {first_digest(run)}  # all ends that the chain has had
        self.whole = True  # from the run's first step on
        self.torn = 0  # bytes of a last line that a power cut tore

    def entries(self) -> Iterator[Entry]:
        for path in self.files[:MOST_FILES]:
            self._chain_at_start = self._chain
            if not stat.S_ISREG(path.lstat().st_mode):  # a pipe would block
                self._report.wrong(Check.LINES, str(path), "this is no ordinary file")
                continue
            for place, content in self._lines(path):
                try:
                    entry = self._parsed(place, content)
                except (ValueError, RecursionError, msgspec.MsgspecError) as error:
                    self._report.wrong(Check.LINES, str(place), f"this is not a line of a journal: {error}")
                    continue
                self._report.passed(Check.LINES)
                if entry is not None:
                    yield entry

    def _lines(self, path: Path) -> Iterator[tuple[Place, bytes]]:
        """Lines whose place in the chain is right."""
        last = path == self.files[-1]
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(MOST_LINE):
                number += 1
                place = Place(path, number)
                found = LINE.fullmatch(raw.removesuffix(b"\n"))
                if not raw.endswith(b"\n"):
                    if len(raw) == MOST_LINE or not last or found or LINE.fullmatch(raw[:-1]):
                        self._report.wrong(Check.LINES, str(place), "this line has no end, or is too long")
                    else:
                        self.torn = len(raw)
                    return
                if found is None:
                    self._report.wrong(Check.LINES, str(place), "this is not a line of a journal")
                    self._chain = None
                    continue
                yield from self._chained(place, Digest(bytes.fromhex(found[1].decode())), found[2])
            if not number:
                self._report.wrong(Check.LINES, str(path), "the file is empty")

    def _chained(self, place: Place, digest: Digest, content: bytes) -> Iterator[tuple[Place, bytes]]:
        before = self._begins_after(place, content) if place.line == 1 else self._chain
        self._chain = digest
        self.chains.add(digest)
        if before is not None and next_digest(before, content) != digest:
            self._report.wrong(
                Check.LINES, str(place), "the chain is broken here: this line, or one before it, was changed"
            )
            return
        yield place, content

    def _begins_after(self, place: Place, content: bytes) -> Digest | None:
        """The chain up to this file, as its first line names it, where that is possible."""
        try:
            named = msgspec.json.decode(content, type=_Begin)
        except (ValueError, RecursionError, msgspec.MsgspecError):
            named = None
        if named is None or not _DIGEST.fullmatch(named.after):
            self._report.wrong(Check.LINES, str(place), "a file of a journal does not begin like this")
            return self._chain
        after = Digest(bytes.fromhex(named.after))
        if place.file == self.files[0]:
            self.whole = after == first_digest(self._run)
            if not self.whole and len(self.files) < KEPT_FILES:
                what = f"files before this one are missing: a peer keeps {KEPT_FILES}, and here are {len(self.files)}"
                self._report.wrong(Check.LINES, str(place), what)
        elif self._chain_at_start not in (None, after):
            self._report.wrong(
                Check.LINES, str(place), "the file does not continue the one before it: one was cut or is missing"
            )
        return after

    def _parsed(self, place: Place, content: bytes) -> Entry | None:
        line = _DECODER.decode(content)
        if json.dumps(msgspec.to_builtins(line), sort_keys=True).encode() != content:
            raise EntryError(
                "it is not written the one way lines are written"
            )  # a key that stands there twice, for one
        if isinstance(line, _Begin) != (place.line == 1):
            raise EntryError("a file begins once, with its first line")
        match line:
            case _Begin():
                if (line.format, line.run) != (FORMAT, self._run.hex()):
                    raise EntryError("another run's journal, or another format")
                return None
            case _Announced():
                return _said(place, self._run, line)
            case _Record():
                return Recorded(place, exact_bytes(line.record))
            case _Signatures():
                return _signed(place, line)
        raise AssertionError(line)


def _said(place: Place, run: Digest, line: _Announced) -> Said:
    step, attempt, phase, incarnation = line.slot
    if phase not in PHASES:
        raise EntryError(f"nothing is announced in {phase.name}")
    found = FILE_NAME.fullmatch(place.file.name)
    assert found is not None
    if step >= int(found[1]) + STEPS_PER_FILE:
        raise EntryError(f"step {step} belongs to a later file")
    envelopes = {_key(peer): _envelope(phase, pair) for peer, pair in line.said.items()}
    return Said(place, Slot(run, step, phase, attempt, incarnation), envelopes)


def _envelope(phase: Phase, pair: _Pair) -> Envelope:
    payload, signature = (b64decode(text, validate=True) for text in pair)
    if (b64encode(payload).decode(), b64encode(signature).decode()) != pair:
        raise EntryError("bytes are not written the one way they are written")
    if len(payload) > most_bytes(phase) or len(signature) != 64:
        raise EntryError("an envelope of the wrong size")
    return Envelope(payload, signature)


def _signed(place: Place, line: _Signatures) -> Signed:
    if not _DIGEST.fullmatch(line.of):
        raise EntryError("not a digest")
    signatures = {_key(peer): exact_bytes(signature) for peer, signature in line.signatures.items()}
    return Signed(place, Digest(bytes.fromhex(line.of)), signatures)


def _key(text: str) -> PeerId:
    key = exact_bytes(text)
    if not valid_peer(key):
        raise EntryError("not a valid key")
    return PeerId(key)
