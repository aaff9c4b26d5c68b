"""Everything that travels between peers: frames, the place they belong to, and their bytes.

What comes in is hostile until it was checked: bounded before it is parsed, parsed strictly, and never an exception (SPEC M3).
"""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Annotated, NewType

import msgspec

from troth.crypto import Digest, Slot
from troth.protocol.wire.messages import (
    MOST_MEMBERS,
    Bytes32,
    Bytes64,
    Envelope,
    Incarnation,
    Keys,
    Malformed,
    Part,
    Phase,
    Step,
)

Signatures = Annotated[dict[Bytes32, Bytes64], msgspec.Meta(max_length=MOST_MEMBERS)]
Path = Annotated[tuple[Bytes32, ...], msgspec.Meta(max_length=32)]
MOST_CERTIFIED_RECORDS = 512  # records in one answer to somebody who comes back


class _Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    pass


def _check_order(keys: tuple[bytes, ...]) -> None:
    """Else one set could be written, and signed, in several ways."""
    if any(one >= other for one, other in pairwise(keys)):
        raise ValueError("keys that are not in order, or not distinct")


# Agreement (SPEC Q1–Q6)


class Value(_Frame, frozen=True):
    """What the sender announces."""

    envelope: Envelope


class View(_Frame, frozen=True):
    """The digest of all values that the sender holds; None where one is missing, which nobody can certify, unless it is the value
    of somebody who has broken off (SPEC Q9)."""

    values: Bytes32 | None
    signature: Bytes64
    gone: Keys = ()  # in their order

    def __post_init__(self) -> None:
        _check_order(self.gone)
        if self.values is None and self.gone:
            raise ValueError("an incomplete view names nobody")


class Certificate(_Frame, frozen=True):
    """Equal views of everyone but those who have broken off. The values need not travel: whoever signed such a view has them."""

    values: Bytes32
    views: Signatures
    chain: Signatures
    gone: Keys = ()

    def __post_init__(self) -> None:
        _check_order(self.gone)


class Chained(_Frame, frozen=True):
    """A value with the signatures of those who accepted it before."""

    originator: Bytes32
    envelope: Envelope
    chain: Signatures


class Relayed(_Frame, frozen=True):
    """A value or view on its way between two who do not reach each other (SPEC F2)."""

    originator: Bytes32
    frame: Value | View


class Decided(_Frame, frozen=True):
    """For those who look on: how it ended (SPEC B2)."""

    said: Annotated[dict[Bytes32, Envelope], msgspec.Meta(max_length=MOST_MEMBERS)]
    equivocations: Annotated[dict[Bytes32, tuple[Envelope, Envelope]], msgspec.Meta(max_length=MOST_MEMBERS)]


# Blobs


class PartSent(_Frame, frozen=True):
    """A contributor's part, for its owner."""

    part: Part
    blob: bytes
    path: Path


class BlobSent(_Frame, frozen=True):
    """An aggregate, from its owner or whoever has it."""

    blob: bytes


class BlobWanted(_Frame, frozen=True):
    digest: Bytes32


class PartShown(_Frame, frozen=True):
    """One contributor's part: handed round by itself, passed on by others, or laid open by its owner for a trial."""

    part: Part
    contributor: Bytes32
    blob: bytes
    path: Path


# Coming back (SPEC B1–B4)


class CertifiedRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A step's record as bytes, and the members' signatures over it."""

    record: Annotated[bytes, msgspec.Meta(max_length=1 << 22)]
    signatures: Signatures


class SyncWanted(_Frame, frozen=True):
    """Somebody who is not a member any more wants to know what has happened from this step on. It comes under the key that it
    wants to have: its own, or a new one if it may have forgotten what it signed; the old one signs that."""

    since: Step
    member: Bytes32
    signature: Bytes64


class Ready(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A member's word that it begins anew if at least so many do."""

    least: Annotated[int, msgspec.Meta(ge=1, le=MOST_MEMBERS)]
    signature: Bytes64


class RestartCertificate(_Frame, frozen=True, tag="RestartCertificate"):
    """Enough are ready: whoever sees this begins (SPEC B5)."""

    step: Step
    tip: Bytes32
    incarnation: Incarnation
    ready: Annotated[dict[Bytes32, Ready], msgspec.Meta(max_length=MOST_MEMBERS)]


class SyncShown(_Frame, frozen=True):
    """What has happened since: certified records only (SPEC U2)."""

    certified: Annotated[tuple[CertifiedRecord, ...], msgspec.Meta(max_length=MOST_CERTIFIED_RECORDS)]
    waits: bool = False  # the sender is in no step itself
    begun: RestartCertificate | None = (
        None  # why the last of them belong to another incarnation, or the step that goes on does
    )


class StateWanted(_Frame, frozen=True):
    digest: Bytes32


class StateShown(_Frame, frozen=True):
    """Model and optimizer after the last of these steps."""

    state: bytes


class RejoinRequest(_Frame, frozen=True, tag="RejoinRequest"):
    """It wants to be a member again."""

    member: Bytes32
    signature: Bytes64


class Waiting(_Frame, frozen=True):
    """The sender is a member and in no step: it would begin anew, from here, as soon as the others do (SPEC B5)."""

    step: Step  # that would come next
    tip: Bytes32  # of everything in common up to there
    incarnation: Incarnation  # that it would be
    ready: Ready | None  # when it sees enough others who wait for the same


class Busy(_Frame, frozen=True):
    """The sender is in a step, as far as it knows: an answer to who waits."""

    step: Step


Agreement = Value | View | Certificate | Chained | Relayed | Decided
Bulk = PartSent | BlobSent | BlobWanted | PartShown
Outside = SyncWanted | SyncShown | StateWanted | StateShown | RejoinRequest | Waiting | Busy | RestartCertificate
Frame = Agreement | Bulk | Outside
AGREEMENT = (Value, View, Certificate, Chained, Relayed, Decided)


@dataclass(frozen=True)
class Packet:
    """A frame and the place it belongs to."""

    slot: Slot
    frame: Frame
    arrived: int | None = field(default=None, compare=False, repr=False)  # in so many bytes, from a network

    @cached_property
    def size(self) -> int:
        """Its length on the line: what it costs whoever keeps it. Between peers in one process it is encoded once to know."""
        return len(encode_packet(self)) if self.arrived is None else self.arrived


# Bytes

Wire = NewType("Wire", bytes)


class _WireSlot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    run: Bytes32
    step: Step
    phase: Annotated[int, msgspec.Meta(ge=1, le=int(max(Phase)))]
    attempt: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
    incarnation: Incarnation


class _Wire(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    slot: _WireSlot
    frame: Frame


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Wire, strict=True)


def encode_packet(packet: Packet) -> Wire:
    return Wire(_ENCODER.encode(_Wire(_WireSlot(*packet.slot), packet.frame)))


def decode_packet(raw: bytes | bytearray | memoryview, most_bytes: int) -> Packet | Malformed:
    """`most_bytes` follows from the run: nothing that its members send is longer."""
    if len(raw) > most_bytes:
        return Malformed(f"{len(raw)} bytes, at most {most_bytes}")
    try:
        wire = _DECODER.decode(raw)
    except (ValueError, RecursionError) as error:  # msgspec's own are ValueErrors; so is a tag that is no text
        return Malformed(str(error)[:200])
    sent = wire.slot
    return Packet(Slot(Digest(sent.run), sent.step, sent.phase, sent.attempt, sent.incarnation), wire.frame, len(raw))
