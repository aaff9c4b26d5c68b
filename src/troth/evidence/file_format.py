"""Formats of what a run shows to outsiders: the file that proves a ban, with the one way to write it down, and `summary.json`.

The ban's file holds the run's founding data, the signed records that changed the roster, the records of the last steps (with
the roots of contributors' commitments), the accusation, the votes that convict, the signed messages that the ban can be
recomputed from, and the signed record that banned. Nothing in it is to be believed before `verify.py` has checked it.
"""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from troth.crypto import Digest, PeerId, Slot
from troth.protocol.core.records import MOST_OWED
from troth.protocol.history import SignedRecord, exact_bytes, key_of
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Announced, Envelope, Malformed, Phase
from troth.protocol.wire.primitives import Primitives

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


# Reasons to refuse evidence: a file that proves nothing, and a computation that cannot be repeated.


class UnprovedError(ValueError):
    """The file does not prove its claim; the message says where it breaks."""


class RecomputeError(ValueError):
    """The disputed computation cannot be repeated from the files at hand; the message says why."""


# Small checks that the verification of evidence is made of.


@contextmanager
def refusing() -> Iterator[None]:
    """Have whatever a decoder raises refuse the file."""
    try:
        yield
    except UnprovedError:
        raise
    except (ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise UnprovedError(str(error)) from error


def expect(holds: bool, otherwise: str) -> None:
    """Raise `UnprovedError` with that reason unless the condition holds."""
    if not holds:
        raise UnprovedError(otherwise)


def open_signed(message: SignedMessage, slot: Slot, tools: Primitives) -> Announced:
    """Decode a message that its sender signed for this slot."""
    announced = tools.open(slot, key_of(message.sender), envelope_of(message))
    if isinstance(announced, Malformed):
        raise UnprovedError(f"a {Phase(slot.phase).name.lower()} message of step {slot.step}: {announced.reason}")
    return announced


# The summary of a run: the same bytes for the same scenario, so it holds no times, paths or dates.


_LONGEST = 60  # characters of a task's, an attack's or a defence's name in the name of a folder


@dataclass(frozen=True)
class RunSummary:
    """Content of `summary.json`; the command line, plots and the page all read it from here."""

    version: str
    peers: int
    byzantine: list[int]
    steps: int
    attack: str | None
    defence: str
    metrics: dict[str, float]
    curve: list[dict[str, float]]
    details: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Write strict JSON: a number that is not finite (the loss of a ruined model) becomes null."""
        fields = dataclasses.asdict(self)
        details = fields.pop("details")
        config = fields.pop("config")
        return json.dumps(finite_or_none({**fields, **details, "config": config}), indent=2, allow_nan=False) + "\n"


def slug(config: dict[str, Any]) -> str:
    """A folder name that is the same for the same configuration and different for another."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
    # A file goes by its name alone: folders in front of it would make a name too long for a file system.
    task, defence, lie = (re.sub(r"[^:+]*/", "", str(config[key]))[:_LONGEST] for key in ("task", "defence", "attack"))
    attack = f"{config['byzantine']}x-{lie}" if config["byzantine"] else "no-attack"
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"{task}-{defence}-{attack}-seed{config['seed']}-{digest}")


def finite_or_none(value: Any) -> Any:
    """The same value as strict JSON can write it: a number that is not finite becomes None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite_or_none(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite_or_none(item) for item in value]
    return value
