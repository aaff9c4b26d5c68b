"""The record of a step: what everyone agreed on, signed by more than half of the members."""

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated

import msgspec

from troth.crypto import Digest, PeerId, Signature, Slot, signed_bytes, tagged_hash
from troth.protocol.wire.messages import (
    ATTEMPTS_PER_MEMBER,
    MOST_CHARGES,
    MOST_MEMBERS,
    MOST_REJOINS,
    NO_BASIS,
    Bytes32,
    Incarnation,
    Keys,
    Kind,
    Part,
    Phase,
    Step,
    Verdict,
)
from troth.protocol.wire.primitives import Primitives

MOST_OWED = 3  # times that an audit is dealt again
Attempt = Annotated[int, msgspec.Meta(ge=0, lt=ATTEMPTS_PER_MEMBER * MOST_MEMBERS)]
Pairs = Annotated[tuple[tuple[Bytes32, Bytes32], ...], msgspec.Meta(max_length=32 * MOST_MEMBERS)]


class Judgement(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How a trial ended. `verdict` is None when no quorum was found: dismissed."""

    accuser: Bytes32 | None
    target: Bytes32
    kind: Kind
    step: Step  # whose work was disputed
    part: Part | None
    attempt: Attempt
    verdict: Verdict | None
    message: Bytes32 = NO_BASIS  # the digest of the message that it was about, as ballots name it (SPEC E2)

    @property
    def banned(self) -> PeerId | None:
        match self.verdict:
            case Verdict.ACCUSED:
                return PeerId(self.target)
            case Verdict.ACCUSER if self.accuser is not None:
                return PeerId(self.accuser)
            case _:
                return None


class Owed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, order=True):
    """An audit that came to nothing: its auditor was lost, or its trial dismissed (SPEC R7)."""

    target: Bytes32
    step: Step  # whose work is to be audited
    times: Annotated[int, msgspec.Meta(ge=1, le=MOST_OWED)]  # that it came to nothing


class Returned(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A member again, and under which key."""

    member: Bytes32
    key: Bytes32


class StepRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Everything a stranger needs to follow the run from one step to the next."""

    step: Step
    members: Keys  # at the start of the step
    contributors: Keys  # whose gradients are in the aggregate
    roots: Keys  # what they committed to
    parts: Annotated[int, msgspec.Meta(ge=1, le=MOST_MEMBERS)]  # into how many the vector was cut
    seed_randomness: Bytes32  # what this step's seeds were derived from
    randomness: Bytes32  # drawn by this step's coins B: the next step's roles
    state_before: Bytes32
    state_after: Bytes32
    updated: bool
    updates: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]  # how often the model had moved after this step
    tau: float  # the clipping radius of this step
    spread: float  # how far contributors were from the aggregate, the lower median: later radii follow from it
    length: float  # how long gradients were, the lower median
    norm: float  # how long the aggregate was, …
    factor: float  # … and what it was multiplied by before the optimizer got it (SPEC U3)
    judgements: Annotated[tuple[Judgement, ...], msgspec.Meta(max_length=MOST_CHARGES)]
    absent: Keys = ()  # fell silent or said what is no message: no longer members, but not banned
    struck: Keys = ()  # did not open coin B
    slowed: Keys = ()  # forced the slow path on everyone: struck too
    link_disputes: Pairs = ()  # who did not reach whom, by the account of one of them; the smaller key first
    expelled: Keys = ()  # were struck too often, or cannot get along with half of the members: no longer members, but not banned
    owed: Annotated[
        tuple[Owed, ...], msgspec.Meta(max_length=MOST_OWED * MOST_MEMBERS)
    ] = ()  # audits to be dealt again
    unaudited: Keys = ()  # whose audit came to nothing too often
    returned: Annotated[
        tuple[Returned, ...], msgspec.Meta(max_length=MOST_REJOINS)
    ] = ()  # members again after this step
    incarnation: Incarnation = 0  # how often the run had begun anew (SPEC B5)
    began: bool = False  # the first of its incarnation
    closing: bool = False  # the run's last: nobody contributed, everyone audited (SPEC U4)

    @property
    def banned(self) -> tuple[PeerId, ...]:
        return tuple(sorted({peer for peer in (j.banned for j in self.judgements) if peer is not None}))

    @property
    def leaving(self) -> frozenset[PeerId]:
        """Who is no longer a member after this step, for whatever reason."""
        return frozenset((*self.banned, *map(PeerId, self.absent), *map(PeerId, self.expelled)))

    @property
    def applied(self) -> float | None:
        """The length of the update, if there was one."""
        return self.norm * self.factor if self.updated else None

    @property
    def unjudged(self) -> bool:
        """Whether the model stood still, and no quorum could say whether an aggregate was right. Within the guarantee somebody's
        report was wrong then, which an audit finds (SPEC G2, R6)."""
        return not self.updated and any(j.kind == Kind.AGGREGATE and j.verdict is None for j in self.judgements)

    @property
    def changes_roster(self) -> bool:
        return bool(self.leaving or self.returned)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(StepRecord, strict=True)


def encode_record(record: StepRecord) -> bytes:
    return _ENCODER.encode(record)


def decode_record(raw: bytes) -> StepRecord:
    """Raises msgspec.MsgspecError on anything that is not a record."""
    return _DECODER.decode(raw)


@lru_cache(maxsize=MOST_MEMBERS)  # everyone's signature is looked at in every step, under the same record
def record_bytes_to_sign(run: Digest, step: int, signer: PeerId, record_digest: Digest) -> bytes:
    """Tagged, so that it is no payload's digest: else anyone could show the signature that Close carries under the last record
    as a second message of its announcement, and its signer as one that said two things."""
    return signed_bytes(Slot(run, step, Phase.RECORD), signer, tagged_hash("troth/record/1", record_digest))


def roots_basis(roots: Mapping[PeerId, Digest], tau: float) -> Digest:
    """What Clip signs beside the aggregates: the gradients and the radius that they were made with (SPEC E2)."""
    pairs = (part for peer in sorted(roots) for part in (peer, roots[peer]))
    return tagged_hash("troth/basis/roots/2", struct.pack(">d", tau), *pairs)


def aggregates_basis(centers: Sequence[Digest], projection_key: Digest, tau: float) -> Digest:
    """What Report signs beside the numbers: the aggregates, projections and radius that these are about (SPEC E2)."""
    return tagged_hash("troth/basis/aggregates/2", struct.pack(">d", tau), projection_key, *centers)


def reports_basis(reports: Mapping[PeerId, Digest]) -> Digest:
    """What Accuse signs beside the accusations: the reports that its sender had (SPEC E2)."""
    return tagged_hash("troth/basis/reports/1", *(part for peer in sorted(reports) for part in (peer, reports[peer])))


def aggregate_message(clip: Digest, accuse: Digest | None) -> Digest:
    """What an owner is judged by: what it said that its aggregate is, and whose reports it called wrong, if it was heard."""
    return tagged_hash("troth/accused/aggregate/1", clip, *(() if accuse is None else (accuse,)))


def right_signers(
    run: Digest,
    step: int,
    raw: bytes,
    members: Sequence[PeerId],
    signatures: Mapping[PeerId, Signature],
    tools: Primitives,
) -> dict[PeerId, Signature]:
    """The members' signatures that fit this record, byte for byte."""
    digest = tools.digest(raw)
    return {
        peer: signature
        for peer, signature in signatures.items()
        if peer in members and tools.verify(peer, record_bytes_to_sign(run, step, peer, digest), signature)
    }
