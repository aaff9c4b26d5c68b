"""The file that proves a ban: what is in it, and the one way to write it down.

It holds the run's founding data, the signed records that changed the roster, the records of the last steps (with what
contributors had committed to), the accusation, the votes that convict, what was signed that the ban can be recomputed from, and
the signed record that banned. `verify.py` checks it; nothing in it is to be believed without that.
"""

import hashlib
import json
from typing import Any

import msgspec

from troth.crypto import PeerId
from troth.protocol.wire.messages import Announced, Envelope

FORMAT = "troth ban evidence 6"
MOST_BYTES = 64 << 20  # of a file; honest members' messages come to far less


class SignedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step's record as bytes (hex) and the members' signatures over it."""

    record: str
    signatures: dict[str, str]


class SignedMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An announcement as it was signed (all hex). Where it belongs follows from its place in the file."""

    sender: str
    payload: str
    signature: str


class ShownPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A contributor's part as it was committed to: the digest of its blob, and the path to the root."""

    sender: str
    digest: str
    path: list[str]


class Exhibit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was signed in the disputed step, as far as the ban follows from it by computing. Blobs lie beside the file."""

    attempt: int
    commits: list[SignedMessage]
    clips: list[SignedMessage]
    reports: list[SignedMessage]
    accuses: list[SignedMessage]
    projection_key: str  # empty where no projections are needed
    aggregates: list[str]  # digests, of all parts
    parcels: list[ShownPart]  # of the disputed part


class Founding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the run's name is the hash of."""

    nonce: str
    description: str
    founders: list[str]
    parameters: dict[str, int | bool | str | None]  # fractions in hexadecimal, so that they are exact


class BanFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file. `checksum` finds accidents; lies are found by the signatures."""

    format: str
    banned: str
    run: Founding
    history: list[SignedRecord]  # the records before those that changed the roster
    before: list[SignedRecord]  # of the last steps: they hold what contributors committed to
    accusation: SignedMessage | None  # where there was an accuser
    votes: list[SignedMessage]  # where there was a vote: those that convict, as many as it takes
    twice: list[SignedMessage]  # where somebody said two things in one place
    phase: int  # of that place; 0 where there is none
    exhibit: Exhibit | None  # None where votes are all there is
    record: SignedRecord  # of the step that banned
    checksum: str


def to_text(file: BanFile) -> str:
    """The one way to write it down: a file that is not exactly this is refused."""
    return json.dumps(msgspec.to_builtins(file), indent=1, sort_keys=True) + "\n"


def checksum(file: BanFile) -> str:
    return hashlib.sha256(to_text(msgspec.structs.replace(file, checksum="")).encode()).hexdigest()


def from_text(text: str) -> BanFile:
    """Parse strictly; raises ValueError for anything but exactly what `to_text` writes, checksum included."""
    if len(text) > MOST_BYTES:
        raise ValueError(f"{len(text):,} characters are too many: evidence of a ban has at most {MOST_BYTES:,}")
    try:
        builtins: Any = json.loads(text)
        file = msgspec.convert(builtins, BanFile, strict=True)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ValueError(f"this is not a ban evidence file: {error}") from error
    if to_text(file) != text:
        raise ValueError("the file is not written the one way evidence is written")
    if checksum(file) != file.checksum:
        raise ValueError("the checksum does not fit: the file was changed or damaged")
    return file


def exact_bytes(text: str) -> bytes:
    """Hexadecimal as we write it: other spellings of the same bytes are refused, so that a file has one form."""
    raw = bytes.fromhex(text)
    if raw.hex() != text:
        raise ValueError("hexadecimal digits must be lower case and without spaces")
    return raw


def envelope_of(message: SignedMessage) -> Envelope:
    return Envelope(exact_bytes(message.payload), exact_bytes(message.signature))


def signed_message(announced: Announced) -> SignedMessage:
    return signed_by(announced.sender, announced.envelope)


def signed_by(sender: PeerId, envelope: Envelope) -> SignedMessage:
    return SignedMessage(sender.hex(), envelope.payload.hex(), envelope.signature.hex())
