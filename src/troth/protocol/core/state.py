"""What a peer carries from one step to the next."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from torch import Tensor

from troth.crypto import Digest, Identity, PeerId, Signature
from troth.protocol.core.channel import Channel, Entropy, Equivocations, Work
from troth.protocol.core.parts import Bounds, ProvenPart
from troth.protocol.core.records import StepRecord, encode_record
from troth.protocol.core.roles import NO_PENDING_AUDITS, Audit, PendingAudits, first_randomness
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Run
from troth.protocol.core.scales import Scales
from troth.protocol.wire.messages import Accusation, Accuse, Announced, Kind, said_as
from troth.protocol.wire.primitives import Primitives

T = TypeVar("T")

# D coordinates


Certified = Callable[[StepRecord, Mapping[PeerId, Signature]], None]


def _goes_unheard(_record: StepRecord, _signatures: Mapping[PeerId, Signature]) -> None:
    pass


@dataclass(frozen=True)
class Peer(Generic[T]):
    """One member: who it is, and what it was given to work with."""

    identity: Identity
    run: Run
    work: Work[T]
    channel: Channel
    entropy: Entropy
    tools: Primitives
    observing: bool = False  # hears everything and says nothing, to come back later (SPEC B2)
    certified: Certified = _goes_unheard  # told of a record as soon as it is, whatever becomes of the step (SPEC U2)

    @property
    def me(self) -> PeerId:
        return self.identity.peer


@dataclass(frozen=True)
class LastRecord:
    """The record of the step before: with their Commits its members sign it (SPEC U2)."""

    record: StepRecord
    digest: Digest
    quorum: int  # of its own members

    @classmethod
    def of(cls, record: StepRecord, roster: Roster, tools: Primitives) -> "LastRecord":
        """`roster` is that of the record's own step."""
        return cls(record, tools.digest(encode_record(record)), roster.quorum)


@dataclass(frozen=True)
class AuditRecord(Generic[T]):
    """What is kept of a step while an audit of it may be due (SPEC K1)."""

    step: int
    training: T  # the state that gradients were taken at
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
    accuses: Mapping[PeerId, Announced]  # of who opened its coin, and so could have named a wrong report

    @property
    def contributors(self) -> tuple[PeerId, ...]:
        return tuple(sorted(self.commits))

    def accused(self, target: PeerId, kind: Kind) -> Announced:
        """The message in which the target lied, if it is guilty of this (SPEC E2)."""
        return (self.commits if kind == Kind.GRADIENT else self.reports)[target]

    def names(self, owner: PeerId, reporter: PeerId, part: int, tools: Primitives) -> bool:
        """Whether this owner called that report wrong."""
        report = tools.digest(self.reports[reporter].envelope.payload)
        wanted = Accusation(reporter, Kind.REPORT, self.step, part, report)
        return wanted in said_as(self.accuses[owner], Accuse).accusations


@dataclass(frozen=True)
class Disclosure:
    """A disputed part as this peer judged it: what was said about it, and what its owner had got (SPEC T6, E3)."""

    attempt: int
    part: int
    commits: Mapping[PeerId, Announced]  # of the contributors
    clip: Announced  # the owner's
    reports: Mapping[PeerId, Announced]
    accuse: Announced | None  # the owner's, if it was heard
    projection_key: Digest
    aggregates: tuple[Digest, ...]  # of all parts
    center: bytes
    proven_parts: Mapping[PeerId, ProvenPart]


@dataclass(frozen=True)
class State(Generic[T]):
    """Everything that honest peers hold in common at the start of a step."""

    step: int
    roster: Roster
    training: T
    randomness: Digest  # r of the last step: roles
    earlier_randomness: Digest  # r of the step before: seeds
    scales: Scales
    pending_audits: PendingAudits  # what is to be audited
    audit_records: Mapping[int, AuditRecord[T]]  # of the last two steps, and of those whose audit is owed
    incarnation: int = 0  # how often the run has begun anew
    last: LastRecord | None = None  # None at the start of the run

    def restarted(self, incarnation: int) -> "State[T]":
        """The same, when the run begins anew here: everyone audits, since a draw may have been thrown away (SPEC B6)."""
        return replace(self, pending_audits=replace(self.pending_audits, everyone=True), incarnation=incarnation)

    @property
    def closed(self) -> bool:
        return self.last is not None and self.last.record.closing

    @classmethod
    def first(cls, run: Run, training: T) -> "State[T]":
        randomness, earlier = first_randomness(run)
        scales = Scales.first(run.parameters)
        return cls(0, Roster.founding(run), training, randomness, earlier, scales, NO_PENDING_AUDITS, {})


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """A finished step: where the peer stands now, and what it can show for it."""

    state: State[T]
    record: StepRecord  # certified by the next step's Commits
    certificate: Mapping[PeerId, Signature]  # of the record before
    commits: Mapping[PeerId, Announced]
    accuses: Mapping[int, Mapping[PeerId, Announced]]  # by attempt
    votes: Mapping[int, Mapping[PeerId, Announced]]  # by attempt
    equivocations: Equivocations  # what proves equivocations
    attempts: int  # how often Clip to Vote were gone through
    audited: tuple[Audit, ...]  # whose work this peer recomputed as auditor
    observed: bool = False  # and took no part
    disclosed: tuple[Disclosure, ...] = ()  # what proves bans over parts
    closing: Mapping[PeerId, Signature] = field(default_factory=dict)  # of the record itself, if it is the run's last
