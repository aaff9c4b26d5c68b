"""Messages that are announced, one type per phase: frozen, bounded, strictly decoded.

A message is signed, and named, by the digest of its raw payload bytes; nothing is re-encoded to be checked.
"""

import math
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from troth.crypto import Digest, PeerId

# P parts, K projections

Bytes32 = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Bytes64 = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
NO_BASIS = Digest(bytes(32))  # equals no agreed digest
MOST_MEMBERS = 1024
Keys = Annotated[tuple[Bytes32, ...], msgspec.Meta(max_length=MOST_MEMBERS)]
Step = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
Part = Annotated[int, msgspec.Meta(ge=0, lt=MOST_MEMBERS)]
MOST_MILLISECONDS = 2**31 - 1
Held = Annotated[bytes, msgspec.Meta(max_length=MOST_MEMBERS // 8)]  # one bit per part
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=MOST_MILLISECONDS)]
Incarnation = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
MOST_ACCUSATIONS = 2 * MOST_MEMBERS  # an honest owner must be able to name every liar
MOST_CHARGES = 32 * MOST_MEMBERS  # each of 250 owners may name every liar
MOST_REJOINS = 32  # in one step
MOST_CANDIDATES = 16  # on probation at a time (SPEC J3)
_MOST_ADDRESS = 128  # bytes
Address = Annotated[str, msgspec.Meta(max_length=_MOST_ADDRESS, pattern=r"^[!-~]*$")]  # of printable characters
ATTEMPTS_PER_MEMBER = 2  # no step takes more (SPEC N1)
_MOST_WITNESSED = MOST_MEMBERS**2 // 8  # bytes: with fewer, liars' complaints could make honest messages too long
LARGEST_NUMBER = 2.0**400  # no honest number comes near it, and no sum of squares of such numbers overflows (SPEC M3)
_MOST_REPORT_BYTES = 8 * MOST_MEMBERS * 66


class Phase(IntEnum):
    """Phases of a step in their order; REJOIN and RESTART are slots of signatures outside a step."""

    COMMIT = 1
    CLIP = 2
    REVEAL = 3
    CONFIRM = 4
    REPORT = 5
    ACCUSE = 6
    VOTE = 7
    CLOSE = 8
    REJOIN = 9
    RESTART = 10


class ChargeKind(IntEnum):
    """The fault that a charge is about."""

    GRADIENT = 1  # the gradient committed to in an earlier step does not follow from the public seed
    REPORT = 2  # a report about one part does not follow from the committed gradient
    AGGREGATE = 3  # an owner's aggregate is not the clipped centre, or the owner covered a wrong report
    COVER = 4  # covering in an earlier step: an audit found a wrong report that the part's owner must have seen
    AUDITED_REPORT = 5  # the gradient of an earlier step is right, but its report does not follow from it
    DEVIATION = 6  # the reported gradient of an earlier step is farther off than other hardware explains
    EQUIVOCATION = 7  # two different messages for one slot, both signed: no vote is needed
    ROUNDING = (
        8  # a number of a drawn leaf is not where the rows pull it: the part is disputed, and judged as AGGREGATE
    )


class GuiltySide(IntEnum):
    """The side that a juror finds guilty."""

    ACCUSED = 1
    ACCUSER = 2
    WITHHELD = 3  # nothing to judge by: the owner did not disclose everything, and is out, but not banned


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class SignedRejoin(_Message, frozen=True):
    """An absent peer's rejoin request, signed by its old key for one step, and by a new one that it will have (SPEC B3)."""

    member: Bytes32
    key: Bytes32  # that it will have: its own, or a successor key
    signature: Bytes64
    accepted: Bytes64 | None = None  # by a successor key: nobody's key is named without it


class Ticket(_Message, frozen=True):
    """A stranger's proof of work for a slot at the door, signed by its key (SPEC J4)."""

    key: Bytes32
    nonce: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
    address: Address  # where members will find it; empty: it dials
    signature: Bytes64


class Probe(_Message, frozen=True):
    """A candidate's commitment to its gradient of this step, signed as a Commit (SPEC J5)."""

    key: Bytes32
    root: Bytes32
    signature: Bytes64


class Measured(_Message, frozen=True):
    """The longest times that the sender measured lately (SPEC Q8)."""

    delay: Milliseconds  # until certificates, or views, of more than half were there
    compute: Milliseconds  # for one gradient or audit
    bulk: Milliseconds  # until more than half of the awaited blobs were there


class Commit(_Message, frozen=True):
    """A contributor's gradient and everyone's coins, before anything about the step is known (SPEC C1, C2)."""

    root: Bytes32 | None
    coin_a: Bytes32
    coin_b: Bytes32
    hardware: Bytes32 | None = None  # the sender's class of hardware (SPEC D3, E6)
    rejoins: Annotated[tuple[SignedRejoin, ...], msgspec.Meta(max_length=MOST_REJOINS)] = ()  # requests heard (SPEC B3)
    took: Measured | None = None  # None if nothing was measured yet
    length: float | None = None  # of the gradient; present if and only if the root is (SPEC V3)
    signature: Bytes64 | None = None  # under the last record; None if the sender was no member in that step (SPEC U2)
    tickets: Annotated[tuple[Ticket, ...], msgspec.Meta(max_length=MOST_CANDIDATES)] = ()  # the best heard (SPEC J4)
    record_key: Bytes32 | None = None  # with which the sender signs later records, if that changes (SPEC U6)


class Center(_Message, frozen=True):
    """The aggregate of one part: its digest, its norm, and most that rounding for the run's code moved it."""

    part: Part
    digest: Bytes32
    norm: float
    rounding: float = 0.0


class Clip(_Message, frozen=True):
    """An owner's aggregates and, from the second attempt on, everyone's fresh coins (SPEC A2, N2)."""

    centers: Annotated[tuple[Center, ...], msgspec.Meta(max_length=MOST_MEMBERS)]
    coin_a: Bytes32 | None = None
    coin_b: Bytes32 | None = None
    missing: Keys = ()  # contributors whose parts did not come
    witnessed: Annotated[bytes, msgspec.Meta(max_length=_MOST_WITNESSED)] = b""  # which parts to be forwarded came here
    basis: Bytes32 = NO_BASIS  # digest of the roots and the radius (SPEC E2)


class Reveal(_Message, frozen=True):
    """Coin A, and the aggregates that the sender holds, one bit per part (SPEC A3, A4)."""

    coin: Bytes32
    held: Held
    probes: Annotated[tuple[Probe, ...], msgspec.Meta(max_length=MOST_CANDIDATES)] = ()  # that came (SPEC J5)


class Confirm(_Message, frozen=True):
    """The aggregates that the sender holds now; announced only if Reveal left one undecided (SPEC N6)."""

    held: Held


class Report(_Message, frozen=True):
    """A contributor's lengths, distances and projections: for every part `‖g‖`, `‖g − ĝ‖`, then K projections (SPEC A5)."""

    numbers: Annotated[bytes, msgspec.Meta(max_length=_MOST_REPORT_BYTES)]
    basis: Bytes32 = NO_BASIS  # digest of the aggregates, the projection key and the radius (SPEC E2)


class Accusation(_Message, frozen=True):
    """A claim that one signed message of the target is wrong (SPEC T1)."""

    target: Bytes32
    kind: ChargeKind
    step: Step  # the work of this step is disputed
    part: Part | None = None  # the part that the report is about, if the kind is REPORT or ROUNDING
    message: Bytes32 = NO_BASIS  # digest of the accused message (SPEC E2)


class Accuse(_Message, frozen=True):
    """Accusations, and coin B, from which the roles of the next step are drawn (SPEC T1, R1)."""

    accusations: Annotated[tuple[Accusation, ...], msgspec.Meta(max_length=MOST_ACCUSATIONS)]
    coin: Bytes32
    unheard: Keys = ()  # members whose value or view did not come in time (SPEC F1)
    incomplete: Keys = ()  # members whose view was wrong
    basis: Bytes32 = NO_BASIS  # digest of all reports (SPEC E2)


class Ballot(_Message, frozen=True):
    """A verdict on one charge. A charge without an accuser follows from public numbers."""

    accuser: Bytes32 | None
    target: Bytes32
    kind: ChargeKind
    step: Step
    part: Part | None
    verdict: GuiltySide
    message: Bytes32 = NO_BASIS  # digest of the judged message, as the charge names it
    state: Bytes32 = NO_BASIS  # content of the state that the work was repeated at, where records chain it (SPEC U5)


class Vote(_Message, frozen=True):
    """A juror's ballots, one for every charge of the attempt that it can judge (SPEC T3)."""

    ballots: Annotated[tuple[Ballot, ...], msgspec.Meta(max_length=MOST_CHARGES)]


class Close(_Message, frozen=True):
    """A signature under the run's last record, which no Commit follows (SPEC U4)."""

    signature: Bytes64


Message = Commit | Clip | Reveal | Confirm | Report | Accuse | Vote | Close


@dataclass(frozen=True)
class Malformed:
    """A payload that is no message of its phase: the sender's fault, as a value with its reason (SPEC M3)."""

    reason: str


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A payload and the signature over its slot and digest (SPEC M1). The receiver knows the slot."""

    payload: bytes
    signature: Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]


@dataclass(frozen=True)
class Announced:
    """A message as all members hold it: decoded, with the envelope that proves its sender."""

    sender: PeerId
    message: Message
    envelope: Envelope


M = TypeVar("M", bound=Message)


def said_as(announced: Announced, kind: type[M]) -> M:
    """Narrow the message to its type: the channel decodes by phase, so another type would be our bug."""
    assert isinstance(announced.message, kind)
    return announced.message


@dataclass(frozen=True)
class ReportNumbers:
    """A report, unpacked: lengths and norms of P parts, and P×K projections."""

    lengths_P: NDArray[np.float64]  # ‖g[p]‖
    norms_P: NDArray[np.float64]  # ‖g[p] − ĝ[p]‖
    projections_PK: NDArray[np.float64]

    @cached_property
    def length(self) -> float:
        """Length of the whole gradient, from the lengths of its parts."""
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
