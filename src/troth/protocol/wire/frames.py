"""Frames that travel between peers, the slots they belong to, and their bytes.

Incoming bytes are hostile until checked: bounded before they are parsed, parsed strictly, and never an exception (SPEC M3).
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
    Probe,
    Step,
    Ticket,
)

Signatures = Annotated[dict[Bytes32, Bytes64], msgspec.Meta(max_length=MOST_MEMBERS)]
Path = Annotated[tuple[Bytes32, ...], msgspec.Meta(max_length=32)]
Chunk = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
MOST_CERTIFIED_RECORDS = 512  # in one answer to a peer that comes back


class _Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    pass


def _check_order(keys: tuple[bytes, ...]) -> None:
    """Require sorted, distinct keys: else one set could be written, and signed, in several ways."""
    if any(one >= other for one, other in pairwise(keys)):
        raise ValueError("keys that are not in order, or not distinct")


# Agreement (SPEC Q1–Q6)


class Value(_Frame, frozen=True):
    """The sender's own announcement (SPEC Q1)."""

    envelope: Envelope


class View(_Frame, frozen=True):
    """Signed digest of all values that the sender holds, with the list of missing members (SPEC Q2, Q9).

    None marks an incomplete view, which cannot be certified. A second view names members that broke off after they spoke, and
    repeats the first."""

    values: Bytes32 | None
    signature: Bytes64
    gone: Keys = ()  # missing members, sorted
    broken_off: Keys = ()  # members that spoke, and whose views will not come, sorted

    def __post_init__(self) -> None:
        _check_order(self.gone)
        _check_order(self.broken_off)
        if self.values is None and (self.gone or self.broken_off):
            raise ValueError("an incomplete view names nobody")


class Certificate(_Frame, frozen=True):
    """Equal views of all members that are not missing and have not disconnected (SPEC Q3). The values need not travel: each
    signer holds them."""

    values: Bytes32
    views: Signatures
    chain: Signatures
    gone: Keys = ()
    broken_off: Keys = ()

    def __post_init__(self) -> None:
        _check_order(self.gone)
        _check_order(self.broken_off)


class Chained(_Frame, frozen=True):
    """A value with the signatures of the members that accepted it before (SPEC Q5)."""

    originator: Bytes32
    envelope: Envelope
    chain: Signatures


class Relayed(_Frame, frozen=True):
    """A value or view relayed between two members in a link dispute (SPEC F2)."""

    originator: Bytes32
    frame: Value | View


class Decided(_Frame, frozen=True):
    """The decision of an announcement, for observers (SPEC B2)."""

    said: Annotated[dict[Bytes32, Envelope], msgspec.Meta(max_length=MOST_MEMBERS)]
    equivocations: Annotated[dict[Bytes32, tuple[Envelope, Envelope]], msgspec.Meta(max_length=MOST_MEMBERS)]


# Blobs: the last thing in their frames, so that they are neither copied nor moved (`encode_in_pieces`)


class PartSent(_Frame, frozen=True):
    """A contributor's part, for the part's owner."""

    part: Part
    path: Path
    blob: memoryview  # of the packet that it came in: not copied


class BlobSent(_Frame, frozen=True):
    """An aggregate, from its owner or another holder."""

    blob: memoryview


class BlobWanted(_Frame, frozen=True):
    """A request for an aggregate, by digest."""

    digest: Bytes32


class PartShown(_Frame, frozen=True):
    """One contributor's part: circulated by the contributor, forwarded by others, or disclosed by its owner for a trial."""

    part: Part
    contributor: Bytes32
    path: Path
    blob: memoryview


# Coming back (SPEC B1–B4)


class CertifiedRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A step's record as bytes, and the members' signatures over it."""

    record: Annotated[bytes, msgspec.Meta(max_length=1 << 22)]
    signatures: Signatures


class SyncWanted(_Frame, frozen=True):
    """A request for the records from this step on, by a peer that is out, under the key that it wants to have.

    It is its own key, or a successor key if it may have lost its signed slots; the old key signs the delegation."""

    since: Step
    member: Bytes32
    signature: Bytes64


class Ready(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A member's signature that it restarts if at least `least` members do (SPEC B5)."""

    least: Annotated[int, msgspec.Meta(ge=1, le=MOST_MEMBERS)]
    signature: Bytes64


class RestartCertificate(_Frame, frozen=True):
    """Signatures of enough members that are ready: a member that sees them begins (SPEC B5)."""

    step: Step
    tip: Bytes32
    incarnation: Incarnation
    ready: Annotated[dict[Bytes32, Ready], msgspec.Meta(max_length=MOST_MEMBERS)]


class SyncShown(_Frame, frozen=True):
    """The answer: records since that step, certified ones only (SPEC U2)."""

    certified: Annotated[tuple[CertifiedRecord, ...], msgspec.Meta(max_length=MOST_CERTIFIED_RECORDS)]
    waits: bool = False  # the sender is in no step itself
    # Proof that the last records, or the step in progress, belong to a later incarnation.
    begun: RestartCertificate | None = None


class StateWanted(_Frame, frozen=True):
    """A request for the index of model and optimizer, by the digest that a record names."""

    digest: Bytes32


class StateIndex(_Frame, frozen=True):
    """The answer: hashes of all chunks, from which the digest follows."""

    digest: Bytes32
    index: bytes


class ChunkWanted(_Frame, frozen=True):
    """A request for a chunk of the state with this digest."""

    digest: Bytes32
    number: Chunk


class ChunkShown(_Frame, frozen=True):
    """The answer; empty if the sender hands out no more in this step."""

    digest: Bytes32
    number: Chunk
    blob: memoryview


class RejoinRequest(_Frame, frozen=True):
    """An absent peer's request to be a member again, under the sender's key (SPEC B3)."""

    member: Bytes32
    signature: Bytes64
    accepted: Bytes64 | None  # by the sender's key, if it is another


class HistoryWanted(_Frame, frozen=True):
    """A stranger's request for the records that changed the members, from this step on, and the newest record (SPEC J8)."""

    since: Step


class HistoryShown(_Frame, frozen=True):
    """The answer: some of these records or, with the last of them, the newest one and the standing after it."""

    changes: Annotated[tuple[CertifiedRecord, ...], msgspec.Meta(max_length=MOST_CERTIFIED_RECORDS)]
    tip: CertifiedRecord | None
    standing: Annotated[bytes, msgspec.Meta(max_length=1 << 22)]


class TipWanted(_Frame, frozen=True):
    """A stranger's question whether this record is part of the member's history now."""

    nonce: Bytes32
    step: Step
    digest: Bytes32


class TipSigned(_Frame, frozen=True):
    """A member's word that it is."""

    nonce: Bytes32
    signature: Bytes64


class TicketShown(_Frame, frozen=True):
    """A stranger's ticket for a slot (SPEC J4)."""

    ticket: Ticket


class ProbeShown(_Frame, frozen=True):
    """A candidate's commitment to its gradient of the step of this slot (SPEC J5)."""

    probe: Probe


class Waiting(_Frame, frozen=True):
    """A member's word that it is in no step, and would restart from here as soon as the others do (SPEC B5)."""

    step: Step  # the next one
    tip: Bytes32  # digest of the common state before that step
    incarnation: Incarnation  # one in which the sender has signed nothing
    ready: Ready | None  # once the sender sees enough members that wait for the same


class Busy(_Frame, frozen=True):
    """The answer to `Waiting` of a member that is in a step, as far as it knows; and the word of one that begins a step after a
    rest (SPEC G3)."""

    step: Step


Agreement = Value | View | Certificate | Chained | Relayed | Decided
Bulk = PartSent | BlobSent | BlobWanted | PartShown
Answer = (  # to a peer that is in no step
    SyncShown | StateIndex | ChunkShown | HistoryShown | TipSigned | Waiting | Busy | RestartCertificate
)
Knock = HistoryWanted | TipWanted | TicketShown | ProbeShown  # of strangers and candidates
Outside = SyncWanted | StateWanted | ChunkWanted | RejoinRequest | Knock | Answer
Frame = Agreement | Bulk | Outside
AGREEMENT = (Value, View, Certificate, Chained, Relayed, Decided)


@dataclass(frozen=True)
class Packet:
    """A frame and the slot it belongs to."""

    slot: Slot
    frame: Frame
    arrived: int | None = field(default=None, compare=False, repr=False)  # bytes that came off a network

    @cached_property
    def size(self) -> int:
        """Length on the wire: the memory it costs to keep. Between peers in one process, found by encoding it once."""
        return sum(map(len, encode_in_pieces(self))) if self.arrived is None else self.arrived


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


def encode_in_pieces(packet: Packet) -> tuple[bytes | memoryview, ...]:
    """The same bytes, with a blob where it lies: it is the last thing in its packet."""
    frame = packet.frame
    if not isinstance(frame, PartSent | PartShown | BlobSent | ChunkShown):
        return (encode_packet(packet),)
    head = encode_packet(Packet(packet.slot, msgspec.structs.replace(frame, blob=memoryview(b""))))
    assert head.endswith(b"\xc4\x00"), "a blob is the last thing in its packet"
    return head[:-2] + _blob_header(len(frame.blob)), frame.blob


def _blob_header(length: int) -> bytes:
    """MessagePack's header of so many bytes."""
    width, tag = next((width, tag) for width, tag in ((1, b"\xc4"), (2, b"\xc5"), (4, b"\xc6")) if length < 256**width)
    return tag + length.to_bytes(width, "big")


def decode_packet(raw: bytes | bytearray | memoryview, most_bytes: int) -> Packet | Malformed:
    """Parse one packet. `most_bytes` follows from the run: nothing that its members send is longer."""
    if len(raw) > most_bytes:
        return Malformed(f"{len(raw)} bytes, at most {most_bytes}")
    try:
        wire = _DECODER.decode(raw)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors, and so is a tag that is not text
        return Malformed(str(error)[:200])
    sent = wire.slot
    return Packet(Slot(Digest(sent.run), sent.step, sent.phase, sent.attempt, sent.incarnation), wire.frame, len(raw))
