"""Format of the file that proves a ban: its fields, and the one way to write it down.

It holds the run's founding data, the signed records that changed the roster, the records of the last steps (with the roots of
contributors' commitments), the accusation, the votes that convict, the signed messages that the ban can be recomputed from, and
the signed record that banned. Nothing in it is to be believed before `verify.py` has checked it.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from troth.crypto import Digest, PeerId
from troth.protocol.core.records import MOST_OWED
from troth.protocol.history.record import SignedRecord, exact_bytes
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Announced, Envelope

FORMAT = "troth ban evidence 10"
MOST_BYTES = 64 << 20  # of a file; honest members' messages come to far less
LAST_STEPS = MOST_OWED + 1  # whose work may be disputed: an audit comes a step later, and may come to nothing so often

F = TypeVar("F", bound=msgspec.Struct)
Blobs = Mapping[Digest, Blob]  # they lie beside the file: see companion_files.py


class SignedMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An announcement as it was signed (all hex). Its slot follows from where it stands in the file."""

    sender: str
    payload: str
    signature: str


class PartProof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A contributor's part as it was committed to: the digest of its blob, and the Merkle path to the root."""

    sender: str
    digest: str
    path: list[str]


class Exhibit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Signed messages of the disputed step that the ban can be recomputed from. Their blobs lie beside the file."""

    attempt: int
    commits: list[SignedMessage]
    clips: list[SignedMessage]
    reports: list[SignedMessage]
    accuses: list[SignedMessage]
    projection_key: str  # empty where no projections are needed
    aggregates: list[str]  # digests, of all parts
    parts: list[PartProof]  # of the disputed part


class Founding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Founding data of the run; its id is their hash."""

    nonce: str
    description: str
    founders: list[str]
    parameters: dict[str, int | bool | str | None]  # fractions in hexadecimal, so that they are exact
    record_keys: dict[str, str]  # of founders that begin with another than their own


class BanFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The evidence file. `checksum` finds accidents; the signatures find lies."""

    format: str
    banned: str
    run: Founding
    history: list[SignedRecord]  # the records that changed the roster, before the last steps
    before: list[SignedRecord]  # the last steps: they hold the roots that contributors committed to
    accusation: SignedMessage | None  # where there was an accuser
    votes: list[SignedMessage]  # where there was a vote: those that convict, as many as it takes
    equivocation: list[SignedMessage]  # of an equivocation: both messages
    phase: int  # of the equivocation's slot; 0 where there is none
    exhibit: Exhibit | None  # None where votes are all there is
    record: SignedRecord  # of the step that banned
    checksum: str


def to_text(file: msgspec.Struct) -> str:
    """Write the file down, the one way: `parsed` refuses every other spelling."""
    return json.dumps(msgspec.to_builtins(file), indent=1, sort_keys=True) + "\n"


def parsed(text: str, kind: type[F], what: str) -> F:
    """Parse strictly; raise ValueError for anything but exactly what `to_text` writes."""
    if len(text) > MOST_BYTES:
        raise ValueError(f"{len(text):,} characters are too many: a {what} has at most {MOST_BYTES:,}")
    try:
        builtins: Any = json.loads(text)
        file = msgspec.convert(builtins, kind, strict=True)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ValueError(f"this is not a {what}: {error}") from error
    if to_text(file) != text:  # a key that stands there twice, for one
        raise ValueError("the file is not written the one way such files are written")
    return file


def checksum(file: BanFile) -> str:
    """Hash the file as it is written with an empty checksum."""
    return hashlib.sha256(to_text(msgspec.structs.replace(file, checksum="")).encode()).hexdigest()


def from_text(text: str) -> BanFile:
    """Parse a ban's evidence strictly, checksum included; raise ValueError for anything else."""
    file = parsed(text, BanFile, "ban evidence file")
    if checksum(file) != file.checksum:
        raise ValueError("the checksum does not fit: the file was changed or damaged")
    return file


def envelope_of(message: SignedMessage) -> Envelope:
    """The message as it travelled: payload and signature."""
    return Envelope(exact_bytes(message.payload), exact_bytes(message.signature))


def signed_message(announced: Announced) -> SignedMessage:
    """An announcement as the file holds it."""
    return signed_by(announced.sender, announced.envelope)


def signed_by(sender: PeerId, envelope: Envelope) -> SignedMessage:
    """An envelope of this sender as the file holds it."""
    return SignedMessage(sender.hex(), envelope.payload.hex(), envelope.signature.hex())
