"""What is announced in each phase: typed, frozen, bounded, strictly decoded.

A message is the digest of its raw payload bytes; nothing is re-encoded to be checked.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from troth.crypto import Digest, Identity, PeerId, Signature, Slot, blob_digest, signed_bytes

# P parts, K projections

Bytes32 = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Bytes64 = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
NO_BASIS = Digest(bytes(32))  # fits nothing that was ever agreed on
MOST_MEMBERS = 1024
Keys = Annotated[tuple[Bytes32, ...], msgspec.Meta(max_length=MOST_MEMBERS)]
Step = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
Part = Annotated[int, msgspec.Meta(ge=0, lt=MOST_MEMBERS)]
MOST_MILLISECONDS = 2**31 - 1
Held = Annotated[bytes, msgspec.Meta(max_length=MOST_MEMBERS // 8)]  # one bit per part
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=MOST_MILLISECONDS)]
Incarnation = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
MOST_ACCUSATIONS = 2 * MOST_MEMBERS  # an honest owner must be able to name every liar
MOST_CHARGES = 32 * MOST_MEMBERS  # every owner, of 250, may name every liar
MOST_REJOINS = 32  # in one step
ATTEMPTS_PER_MEMBER = 2  # no step can take more (SPEC N1)
_MOST_WITNESSED = MOST_MEMBERS**2 // 8  # bytes: with fewer, liars' complaints could make honest messages too long
_LARGEST = 2.0**400  # no honest number comes near, and sums of squares of such numbers are still numbers
_MOST_REPORT_BYTES = 8 * MOST_MEMBERS * 66


class Phase(IntEnum):
    COMMIT = 1
    CLIP = 2
    REVEAL = 3
    CONFIRM = 4
    REPORT = 5
    ACCUSE = 6
    VOTE = 7
    RECORD = 8
    REJOIN = 9
    RESTART = 10


class Kind(IntEnum):
    """What somebody is accused of."""

    GRADIENT = 1  # the gradient committed to in an earlier step does not follow from the public seed
    REPORT = 2  # a report about one part does not follow from the committed gradient
    AGGREGATE = 3  # an owner's aggregate is not the clipped centre, or it let a wrong report pass
    COVER = 4  # the same, of an earlier step: an audit found a wrong report that the part's owner must have seen
    AUDITED_REPORT = 5  # the gradient of an earlier step is right, but its report does not follow from it
    DEVIATION = 6  # the reported gradient of an earlier step is farther off than other hardware explains
    EQUIVOCATION = 7  # two different messages in one announcement, both signed: no vote is needed


class Verdict(IntEnum):
    ACCUSED = 1
    ACCUSER = 2
    WITHHELD = 3  # there is nothing to judge by: the accused laid nothing open, and is out, but not banned


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class SignedRejoin(_Message, frozen=True):
    """Who wants to be a member again, and under which key; signed by the member for one step (SPEC B3)."""

    member: Bytes32
    key: Bytes32
    signature: Bytes64


class Measured(_Message, frozen=True):
    """How long things took the sender lately (SPEC Q8)."""

    delay: Milliseconds  # until more than half of the others' certificates, or views, were there
    compute: Milliseconds
    bulk: Milliseconds  # until more than half of some blobs were there


class Commit(_Message, frozen=True):
    """A contributor's gradient and everyone's coins, before anything about the step is known (SPEC C1, C2)."""

    root: Bytes32 | None
    coin_a: Bytes32
    coin_b: Bytes32
    hardware: Bytes32 | None = None  # the sender's class, in a run of several (SPEC D3)
    rejoins: Annotated[
        tuple[SignedRejoin, ...], msgspec.Meta(max_length=MOST_REJOINS)
    ] = ()  # who wants to come back (SPEC B3)
    took: Measured | None = None  # None if nothing was measured yet
    length: float | None = None  # of the gradient; there if and only if there is a root (SPEC V3)
    signature: Bytes64 | None = None  # under the last record; None from who was no member in that step (SPEC U2)


class Center(_Message, frozen=True):
    """The aggregate of one part: its digest and norm."""

    part: Part
    digest: Bytes32
    norm: float


class Clip(_Message, frozen=True):
    """An owner's aggregates, and from the second attempt on fresh coins (SPEC A2, N2)."""

    centers: Annotated[tuple[Center, ...], msgspec.Meta(max_length=MOST_MEMBERS)]
    coin_a: Bytes32 | None = None
    coin_b: Bytes32 | None = None
    missing: Keys = ()  # whose parts did not come
    witnessed: Annotated[bytes, msgspec.Meta(max_length=_MOST_WITNESSED)] = b""  # which parts to be passed on came here
    basis: Bytes32 = NO_BASIS  # the digest of the roots that it was made from (SPEC E2)


class Reveal(_Message, frozen=True):
    """Coin A, and which aggregates this peer holds, one bit per part (SPEC A3, A4)."""

    coin: Bytes32
    held: Held


class Confirm(_Message, frozen=True):
    """Which aggregates this peer holds now: said again only if Reveal left one undecided (SPEC N6)."""

    held: Held


class Report(_Message, frozen=True):
    """A contributor's lengths, distances and projections: for every part `‖g‖`, `‖g − ĝ‖`, then K projections (SPEC A5)."""

    numbers: Annotated[bytes, msgspec.Meta(max_length=_MOST_REPORT_BYTES)]
    basis: Bytes32 = NO_BASIS  # the digest of the aggregates and the key of the projections (SPEC E2)


class Accusation(_Message, frozen=True):
    target: Bytes32
    kind: Kind
    step: Step  # whose work is disputed
    part: Part | None = None  # which report, if the kind is REPORT
    message: Bytes32 = NO_BASIS  # the digest of the signed message that it accuses (SPEC E2)


class Accuse(_Message, frozen=True):
    """Accusations, and coin B, which draws the roles of the next step (SPEC T1, R1)."""

    accusations: Annotated[tuple[Accusation, ...], msgspec.Meta(max_length=MOST_ACCUSATIONS)]
    coin: Bytes32
    unheard: Keys = ()  # whose values or views did not come in time (SPEC F1)
    incomplete: Keys = ()  # whose views said that something was missing
    basis: Bytes32 = NO_BASIS  # the digest of all reports (SPEC E2)


class Ballot(_Message, frozen=True):
    """A verdict on one charge. Without an accuser it is a charge that follows from public numbers."""

    accuser: Bytes32 | None
    target: Bytes32
    kind: Kind
    step: Step
    part: Part | None
    verdict: Verdict
    message: Bytes32 = NO_BASIS  # as the accusation names it


class Vote(_Message, frozen=True):
    """One verdict for every accusation of this step (SPEC T3)."""

    ballots: Annotated[tuple[Ballot, ...], msgspec.Meta(max_length=MOST_CHARGES)]


class Close(_Message, frozen=True):
    """A signature under the run's last record, which no Commit follows (SPEC U4)."""

    signature: Bytes64


Message = Commit | Clip | Reveal | Confirm | Report | Accuse | Vote | Close

_KINDS: Mapping[Phase, type[Message]] = {
    Phase.COMMIT: Commit,
    Phase.CLIP: Clip,
    Phase.REVEAL: Reveal,
    Phase.CONFIRM: Confirm,
    Phase.REPORT: Report,
    Phase.ACCUSE: Accuse,
    Phase.VOTE: Vote,
    Phase.RECORD: Close,
}
_PHASES: Mapping[type[Message], Phase] = {kind: phase for phase, kind in _KINDS.items()}
_DECODERS = {phase: msgspec.msgpack.Decoder(kind, strict=True) for phase, kind in _KINDS.items()}
_ENCODER = msgspec.msgpack.Encoder()
_MOST_BYTES: Mapping[Phase, int] = {
    Phase.COMMIT: 256 + 136 * MOST_REJOINS,
    Phase.CLIP: 194 + 98 * MOST_MEMBERS + _MOST_WITNESSED,
    Phase.REVEAL: 64 + MOST_MEMBERS // 8,
    Phase.CONFIRM: 16 + MOST_MEMBERS // 8,
    Phase.REPORT: 50 + _MOST_REPORT_BYTES,
    Phase.ACCUSE: 98 + 98 * MOST_ACCUSATIONS + 68 * MOST_MEMBERS,
    Phase.VOTE: 16 + 122 * MOST_CHARGES,
    Phase.RECORD: 80,
}


_BY_NUMBER = {int(phase): most for phase, most in _MOST_BYTES.items()}  # an enum's hash is slow, and every packet asks


def most_bytes(phase: int) -> int:
    """No message of this phase is longer; -1 where nothing is announced."""
    return _BY_NUMBER.get(int(phase), -1)


@dataclass(frozen=True)
class Malformed:
    """A payload that is no message of its phase: the sender's fault, with the reason."""

    reason: str


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A payload and the signature over its place and digest. The place itself is known to whoever opens it."""

    payload: bytes
    signature: Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]


def phase_of(message: Message) -> Phase:
    return _PHASES[type(message)]


def encode(message: Message) -> bytes:
    return _ENCODER.encode(message)


def decode(phase: Phase, payload: bytes) -> Message | Malformed:
    """Bounded before it is parsed, parsed strictly, numbers checked: a fault is a value, not an exception (SPEC M3)."""
    if len(payload) > _MOST_BYTES[phase]:
        return Malformed(f"{len(payload)} bytes, at most {_MOST_BYTES[phase]}")
    try:
        message: Message = _DECODERS[phase].decode(payload)
    except msgspec.MsgspecError as error:
        return Malformed(str(error))
    if isinstance(message, Commit) and (message.root is None) != (message.length is None):
        return Malformed("a gradient is committed to with its length, and nothing else has one")
    if isinstance(message, Commit) and message.length is not None and not 0 <= message.length <= _LARGEST:
        return Malformed("the gradient's length is not a finite length")
    if isinstance(message, Clip) and not all(0 <= c.norm <= _LARGEST for c in message.centers):
        return Malformed("the norm is not a finite length")
    if isinstance(message, Report) and (
        len(message.numbers) % 8 or not (np.abs(np.frombuffer(message.numbers, "<f8")) <= _LARGEST).all()
    ):
        return Malformed("a report must consist of finite float64 numbers up to 2^400")
    return message


def seal(identity: Identity, slot: Slot, message: Message) -> Envelope:
    payload = encode(message)
    return Envelope(payload, identity.sign(signed_bytes(slot, identity.peer, blob_digest(payload))))


def wire_bytes(envelope: Envelope) -> bytes:
    return _ENCODER.encode(envelope)


@dataclass(frozen=True)
class Announced:
    """A message as everyone holds it: decoded, with the envelope that proves who said it."""

    sender: PeerId
    message: Message
    envelope: Envelope


M = TypeVar("M", Commit, Clip, Reveal, Confirm, Report, Accuse, Vote, Close)


def said_as(announced: Announced, kind: type[M]) -> M:
    """The channel decodes by phase, so another type would be our own bug."""
    assert isinstance(announced.message, kind)
    return announced.message


@dataclass(frozen=True)
class ReportNumbers:
    """A report, unpacked: lengths and distances of P parts, and P×K projections."""

    lengths_P: NDArray[np.float64]  # of the gradient's own parts
    norms_P: NDArray[np.float64]  # of their differences from the aggregate
    projections_PK: NDArray[np.float64]

    @cached_property
    def length(self) -> float:
        """Of the whole gradient, as it follows from its parts'."""
        return math.sqrt(math.fsum(length * length for length in self.lengths_P.tolist()))

    def pack(self) -> bytes:
        return np.column_stack([self.lengths_P, self.norms_P, self.projections_PK]).astype("<f8").tobytes()

    def part(self, part: int) -> "ReportNumbers":
        """The report about one part alone."""
        here = slice(part, part + 1)
        return ReportNumbers(self.lengths_P[here], self.norms_P[here], self.projections_PK[here])

    @classmethod
    def unpack(cls, raw: bytes, parts: int, projections: int) -> "ReportNumbers | Malformed":
        if len(raw) != 8 * parts * (projections + 2):
            return Malformed(f"a report of {len(raw)} bytes for {parts} parts and {projections} projections")
        numbers = np.frombuffer(raw, "<f8").reshape(parts, projections + 2)
        if (numbers[:, :2] < 0).any():
            return Malformed("a length is negative")
        return cls(numbers[:, 0], numbers[:, 1], numbers[:, 2:])


__all__ = [
    "Accusation",
    "Accuse",
    "Announced",
    "Ballot",
    "Center",
    "Clip",
    "Close",
    "Commit",
    "Confirm",
    "Digest",
    "Envelope",
    "Kind",
    "Malformed",
    "Measured",
    "Message",
    "Phase",
    "Report",
    "ReportNumbers",
    "Reveal",
    "Signature",
    "Verdict",
    "Vote",
    "decode",
    "encode",
    "phase_of",
    "said_as",
    "seal",
    "wire_bytes",
]
