"""Lines of a journal, decoded strictly: each has one form, and is chained to the one before (SPEC E5).

Nothing in them is believed. The chain finds accidents and clumsy changes; whoever rewrites a journal can make a new chain, and
then signatures are what is left.
"""

import json
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Annotated

import msgspec

from troth.crypto import Digest, PeerId, Slot, blob_digest, tagged_hash, valid_peer
from troth.protocol.history.record import exact_bytes
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import ATTEMPTS_PER_MEMBER, MOST_MEMBERS, Envelope, Incarnation, Phase, Step
from troth.protocol.wire.phases import PHASES, most_bytes

FORMAT = "troth journal 6"
_LINE = re.compile(rb'\{"chain": "([0-9a-f]{64})", "what": (\{.*\})\}')
_ANNOUNCED = b'{"kind": "announced"'  # the beginning of such a line


class EntryError(ValueError):
    """A line that no peer writes; the message says why."""


@dataclass(frozen=True)
class Begin:
    """The first line of each file."""

    format: str
    run: str
    after: Digest  # end of the chain before this file


@dataclass(frozen=True)
class Said:
    """Everyone's announcement for a slot; nothing about the envelopes was checked."""

    step: int
    attempt: int
    phase: Phase
    incarnation: int
    envelopes: dict[PeerId, Envelope]

    def slot(self, run: Digest) -> Slot:
        return Slot(run, self.step, self.phase, self.attempt, self.incarnation)


@dataclass(frozen=True)
class Recorded:
    """A record as bytes."""

    raw: bytes


@dataclass(frozen=True)
class Signed:
    """Signatures under a record that stands before."""

    record: Digest
    signatures: dict[PeerId, bytes]

    def under(self, record: Recorded | None) -> CertifiedRecord | None:
        """The record with these signatures, if they are said to be under it."""
        fits = record is not None and blob_digest(record.raw) == self.record
        signatures = {bytes(peer): one for peer, one in self.signatures.items()}
        return CertifiedRecord(record.raw, signatures) if record is not None and fits else None


Entry = Begin | Said | Recorded | Signed


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


def chain_of(raw: bytes) -> tuple[Digest, bytes] | None:
    """The chain up to a line, as the line names it, and its content; None if this is no line. Whether the chain is right, its
    reader has to see (`next_digest`)."""
    found = _LINE.fullmatch(raw)
    return None if found is None else (Digest(bytes.fromhex(found[1].decode())), found[2])


def first_digest(run: Digest) -> Digest:
    """The chain before the first line."""
    return tagged_hash("troth/journal/1", run)


def next_digest(chain: Digest, content: bytes) -> Digest:
    """The chain up to a line with this content."""
    return tagged_hash("troth/journal/1", chain, content)


def is_announced(content: bytes) -> bool:
    """Whether a line holds announcements, which are most of a journal, by its first bytes."""
    return content.startswith(_ANNOUNCED)


def decode(content: bytes) -> Entry:
    """What a line says. Raises `EntryError` for anything but the one way in which it is written."""
    try:
        line = _DECODER.decode(content)
        written = json.dumps(msgspec.to_builtins(line), sort_keys=True).encode()
        if written != content:  # a key that stands there twice, for one
            raise EntryError("it is not written the one way lines are written")
        return _entry(line)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise EntryError(str(error)) from error


def _entry(line: _Begin | _Announced | _Record | _Signatures) -> Entry:
    match line:
        case _Begin():
            return Begin(line.format, line.run, Digest(_exactly(32, line.after)))
        case _Announced():
            step, attempt, phase, incarnation = line.slot
            if phase not in PHASES:
                raise EntryError(f"nothing is announced in {phase.name}")
            envelopes = {_key(peer): _envelope(phase, pair) for peer, pair in line.said.items()}
            return Said(step, attempt, phase, incarnation, envelopes)
        case _Record():
            return Recorded(exact_bytes(line.record))
        case _Signatures():
            signatures = {_key(peer): _exactly(64, one) for peer, one in line.signatures.items()}
            return Signed(Digest(_exactly(32, line.of)), signatures)


def _envelope(phase: Phase, pair: _Pair) -> Envelope:
    payload, signature = (b64decode(text, validate=True) for text in pair)
    if (b64encode(payload).decode(), b64encode(signature).decode()) != pair:
        raise EntryError("bytes are not written the one way they are written")
    if len(payload) > most_bytes(phase) or len(signature) != 64:
        raise EntryError("an envelope of the wrong size")
    return Envelope(payload, signature)


def _exactly(count: int, text: str) -> bytes:
    raw = exact_bytes(text)
    if len(raw) != count:
        raise EntryError(f"not {count} bytes")
    return raw


def _key(text: str) -> PeerId:
    key = exact_bytes(text)
    if not valid_peer(key):
        raise EntryError("not a valid key")
    return PeerId(key)
