"""State that a peer carries from one step to the next."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from torch import Tensor

from troth.clip.blocks import Code
from troth.crypto import Digest, Identity, PeerId, Signature, Slot, signed_bytes, tagged_hash
from troth.protocol.core.channel import NOTHING_NOTICED, Channel, Entropy, Equivocations, Noticed, Work
from troth.protocol.core.parts import Bounds, ProvenPart
from troth.protocol.core.records import RecordKeys, Returned, StepRecord, encode_record, record_bytes_to_sign
from troth.protocol.core.roles import NO_PENDING_AUDITS, AuditDuty, PendingAudits, Roles, first_randomness
from troth.protocol.core.roster import CommonState, Roster, Scales
from troth.protocol.core.run import Run
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import (
    MOST_REJOINS,
    Accusation,
    Accuse,
    Announced,
    ChargeKind,
    Commit,
    Phase,
    SignedRejoin,
    said_as,
)
from troth.protocol.wire.primitives import Primitives

T = TypeVar("T")

# D coordinates


NO_MODEL = Digest(bytes(32))  # of a state that does not matter, or is not here
Certified = Callable[[StepRecord, Mapping[PeerId, Signature]], None]


def _goes_unheard(_record: StepRecord, _signatures: Mapping[PeerId, Signature]) -> None:
    pass


@dataclass(frozen=True)
class Peer(Generic[T]):
    """One member: its identity, and its interfaces to the outside."""

    identity: Identity
    run: Run
    work: Work[T]
    channel: Channel
    entropy: Entropy
    tools: Primitives
    noticed: Noticed = NOTHING_NOTICED
    observing: bool = False  # hears everything and says nothing, to come back later (SPEC B2)
    certified: Certified = _goes_unheard  # called when a record is certified, whatever becomes of the step (SPEC U2)
    record_keys: RecordKeys | None = None  # None: it signs records with its own key (SPEC U6)

    @property
    def me(self) -> PeerId:
        return self.identity.peer

    @property
    def code(self) -> Code:
        """In which gradients and aggregates are sent."""
        return self.run.parameters.coding

    def signs(self, last: "LastRecord") -> Signature:
        """This peer's signature under a record, with the key that it has for that (SPEC U2, U6). Nobody hears an observer's."""
        message = record_bytes_to_sign(self.run.id, last.record.step, self.me, last.digest)
        key = last.signers.get(self.me, self.me)
        return self.identity.sign(message) if key == self.me else (self.record_keys or RecordKeys()).sign(key, message)


@dataclass(frozen=True)
class LastRecord:
    """The record of the step before, which its members sign with their Commits (SPEC U2)."""

    record: StepRecord
    digest: Digest
    quorum: int  # of its own members
    signers: Mapping[PeerId, PeerId]  # its own members, and the keys with which they sign it (SPEC U6)

    @classmethod
    def of(cls, record: StepRecord, roster: Roster, tools: Primitives) -> "LastRecord":
        """Digest and quorum of a record; `roster` is that of the record's own step."""
        return cls(record, tools.digest(encode_record(record)), roster.quorum, roster.signers)


@dataclass(frozen=True)
class AuditRecord(Generic[T]):
    """Everything of a step that audits of it need, kept while one may be pending (SPEC K1)."""

    step: int
    training: T  # state that gradients were taken at
    model: Digest  # its digest, as records name it
    content: bool  # that is the digest of its content (SPEC U5)
    seed_randomness: Digest
    owners: tuple[PeerId, ...]  # by part, as of the last attempt
    bounds: Bounds
    tau: float
    aggregate_D: Tensor
    projection_key: Digest
    attempt: int  # the last one
    commits: Mapping[PeerId, Announced]  # of the contributors
    reports: Mapping[PeerId, Announced]
    clips: Mapping[PeerId, Announced]  # of the owners
    accuses: Mapping[PeerId, Announced]  # of the members that opened coin B, and so could have named a wrong report
    probed: Mapping[PeerId, Announced] = field(default_factory=dict)  # of candidates (SPEC J5)

    @property
    def contributors(self) -> tuple[PeerId, ...]:
        return tuple(sorted(self.commits))

    def accused(self, target: PeerId, kind: ChargeKind) -> Announced:
        """Message of the target that a charge of this kind is about (SPEC E2). A candidate has signed one only (SPEC J5)."""
        if target in self.probed:
            return self.probed[target]
        return (self.commits if kind == ChargeKind.GRADIENT else self.reports)[target]

    def names(self, owner: PeerId, reporter: PeerId, part: int, tools: Primitives) -> bool:
        """Whether this owner accused that reporter of a wrong report about the part."""
        report = tools.digest(self.reports[reporter].envelope.payload)
        wanted = Accusation(reporter, ChargeKind.REPORT, self.step, part, report)
        return wanted in said_as(self.accuses[owner], Accuse).accusations


@dataclass(frozen=True)
class Disclosure:
    """A disputed part as this peer judged it: the signed messages about it, and the parts its owner received (SPEC T6, E3)."""

    attempt: int
    part: int
    commits: Mapping[PeerId, Announced]  # of the contributors
    clip: Announced  # the owner's
    reports: Mapping[PeerId, Announced]
    accuse: Announced | None  # the owner's, if it was heard
    projection_key: Digest
    aggregates: tuple[Digest, ...]  # of all parts
    center: Blob
    proven_parts: Mapping[PeerId, ProvenPart]


@dataclass(frozen=True)
class State(Generic[T]):
    """Common state of all honest peers at the start of a step."""

    step: int
    roster: Roster
    training: T
    model: Digest  # digest of `training`, as records name it (SPEC U5)
    randomness: Digest  # r_{t−1}: source of the roles
    earlier_randomness: Digest  # r_{t−2}: source of the seeds
    scales: Scales
    pending_audits: PendingAudits
    audit_records: Mapping[int, AuditRecord[T]]  # by step: the last two, and those with pending audits
    incarnation: int = 0  # number of restarts so far
    last: LastRecord | None = None  # None at the start of the run

    def restarted(self, incarnation: int) -> "State[T]":
        """This state after a restart: everyone audits, since a draw may have been discarded (SPEC B6)."""
        return replace(self, pending_audits=replace(self.pending_audits, everyone=True), incarnation=incarnation)

    @classmethod
    def after(
        cls,
        record: StepRecord,
        roster: Roster,
        common: CommonState,
        training: T,
        model: Digest,
        audit_records: Mapping[int, AuditRecord[T]],
        tools: Primitives,
    ) -> "State[T]":
        """The state that a record leads to. `roster` is that of the record's own step, `common` what follows from the record."""
        return cls(
            step=record.step + 1,
            roster=common.roster,
            training=training,
            model=model,
            randomness=common.randomness,
            earlier_randomness=common.earlier_randomness,
            scales=common.scales,
            pending_audits=PendingAudits.after(record),
            audit_records=audit_records,
            incarnation=record.incarnation,
            last=LastRecord.of(record, roster, tools),
        )

    @property
    def common(self) -> CommonState:
        return CommonState(self.roster, self.scales, self.randomness, self.earlier_randomness)

    @property
    def closed(self) -> bool:
        """Whether the run is over: no step follows this state."""
        return self.last is not None and self.last.record.ends_run

    @property
    def content(self) -> bool:
        """Whether `model` is the digest of the state's content."""
        return self.last is None or self.last.record.content

    @classmethod
    def first(cls, run: Run, training: T, model: Digest = NO_MODEL) -> "State[T]":
        """The state that a run begins with; `model` is its content's digest."""
        randomness, earlier = first_randomness(run)
        scales = Scales.first(run.parameters)
        return cls(0, Roster.founding(run), training, model, randomness, earlier, scales, NO_PENDING_AUDITS, {})


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """A finished step: the next state, and the messages that prove what happened."""

    state: State[T]
    record: StepRecord  # certified by the next step's Commits
    roles: Roles  # as they were drawn for this step
    certificate: Mapping[PeerId, Signature]  # signatures under the record before
    commits: Mapping[PeerId, Announced]
    accuses: Mapping[int, Mapping[PeerId, Announced]]  # by attempt
    votes: Mapping[int, Mapping[PeerId, Announced]]  # by attempt
    equivocations: Equivocations
    attempts: int  # passes from Clip to Vote
    audited: tuple[AuditDuty, ...]  # audits that this peer did
    observed: bool = False  # this peer observed, and took no part
    disclosed: tuple[Disclosure, ...] = ()  # proofs of bans over parts
    closing: Mapping[PeerId, Signature] = field(default_factory=dict)  # under this record, if it ends the run


# Rejoin requests (SPEC B3): signed by the absent peer, listed in Commits, granted by the record.


def request_bytes(slot: Slot, member: PeerId, key: PeerId, since: int) -> bytes:
    """Bytes that an absent peer signs to come back after this step, under this key.

    They name the step in which it fell out: a request that a liar kept from an earlier absence is worth nothing (SPEC B3)."""
    what = tagged_hash("troth/return/1", since.to_bytes(8, "big"), key)
    return signed_bytes(slot._replace(phase=Phase.REJOIN, attempt=0), member, what)


def acceptance_bytes(slot: Slot, member: PeerId, key: PeerId, since: int) -> bytes:
    """Bytes that a successor key signs to take over the seat after this step: a ban of the seat bans it too (SPEC B8)."""
    what = tagged_hash("troth/return/accepted/1", since.to_bytes(8, "big"), member)
    return signed_bytes(slot._replace(phase=Phase.REJOIN, attempt=0), key, what)


def signed_request(slot: Slot, seat: Identity, successor: Identity, since: int) -> SignedRejoin:
    """A request of the seat to come back after the step of this slot, under its own key or a successor key."""
    member, key = seat.peer, successor.peer
    signature = seat.sign(request_bytes(slot, member, key, since))
    accepted = None if key == member else successor.sign(acceptance_bytes(slot, member, key, since))
    return SignedRejoin(member, key, signature, accepted)


def is_request(slot: Slot, rejoin: SignedRejoin, roster: Roster, tools: Primitives) -> bool:
    """Tell whether the peer is absent, and signed this request for the step of this slot, as did the key that it names."""
    member, key, since = PeerId(rejoin.member), PeerId(rejoin.key), roster.absent_since(PeerId(rejoin.member))
    if since is None or not 0 <= slot.incarnation < 1 << 32 or (rejoin.accepted is None) != (key == member):
        return False
    return tools.verify(member, request_bytes(slot, member, key, since), rejoin.signature) and (
        rejoin.accepted is None or tools.verify(key, acceptance_bytes(slot, member, key, since), rejoin.accepted)
    )


def right_requests(
    slot: Slot, rejoins: Iterable[SignedRejoin], roster: Roster, tools: Primitives
) -> list[SignedRejoin]:
    """Requests that may be listed in Commit: one for each absent peer."""
    once = {rejoin.member: rejoin for rejoin in rejoins if is_request(slot, rejoin, roster, tools)}
    return [once[member] for member in sorted(once)][:MOST_REJOINS]


def returning(commits: Mapping[PeerId, Announced], roster: Roster, step: int) -> tuple[Returned, ...]:
    """Peers that may come back and are listed by anyone: a request proves itself, and silence keeps nobody out (SPEC B3). Of
    those that came in by the door, only as many as may be admitted, the longest away first (SPEC J7)."""
    listed = [rejoin for said in commits.values() for rejoin in said_as(said, Commit).rejoins]
    backs = {Returned(rejoin.member, rejoin.key) for rejoin in listed}
    may = sorted((back for back in backs if roster.may_return(back, step)), key=lambda back: (back.member, back.key))
    once = {PeerId(back.member): back for back in reversed(may)}
    by_the_door = sorted(once.keys() & roster.came_in, key=lambda member: (roster.absent_since(member), member))
    late = by_the_door[roster.door.most_admitted(len(roster.members)) :]
    return tuple(once[member] for member in sorted(once.keys() - set(late)))[:MOST_REJOINS]
