"""Evidence of bans: collecting everything that a stranger needs to check them offline."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from troth.clip.blocks import Code
from troth.crypto import PeerId, Signature
from troth.evidence.file_format import (
    FORMAT,
    LAST_STEPS,
    BanFile,
    Blobs,
    Exhibit,
    PartProof,
    SignedMessage,
    UnprovedError,
    checksum,
    signed_by,
    signed_message,
    to_text,
)
from troth.evidence.open_exhibit import open_exhibit, wrong_reporters
from troth.evidence.signed_records import founding_of
from troth.files import safe_name
from troth.protocol.core.records import Judgement, StepRecord
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Run
from troth.protocol.core.state import AuditRecord, Disclosure, Outcome
from troth.protocol.history import SignedRecord, sign_off
from troth.protocol.step.trials import convicts
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import Announced, ChargeKind, Vote, said_as
from troth.protocol.wire.primitives import Primitives
from troth.training.work import Training

_REASONS = {
    ChargeKind.GRADIENT: "its gradient of step {step} does not follow from its seed",
    ChargeKind.AUDITED_REPORT: "its report of step {step} does not follow from its gradient",
    ChargeKind.REPORT: "its report about part {part} does not follow from the gradient it committed to",
    ChargeKind.AGGREGATE: "its aggregate of part {part} is wrong, or it let a wrong report about it pass",
    ChargeKind.COVER: "it let a wrong report about part {part} pass in step {step}",
    ChargeKind.EQUIVOCATION: "it said two different things in one announcement of step {step}",
    ChargeKind.DEVIATION: "its gradient of step {step} is farther off than other hardware explains",
}


def reason_for(judgement: Judgement, name: Callable[[PeerId], str]) -> str:
    """Why this judgement bans, in words for people."""
    if judgement.banned != judgement.target:
        return f"it accused {name(PeerId(judgement.target))} falsely"
    reason = _REASONS[judgement.kind].format(step=judgement.step, part=judgement.part)
    return reason if judgement.accuser is None else f"{reason} (found by {name(PeerId(judgement.accuser))})"


def evidence_name(step: int, who: str) -> str:
    """Name of the evidence file of a ban in that step."""
    return f"ban-step{step}-{safe_name(who)}.json"


@dataclass(frozen=True)
class BanEvidence:
    """An evidence file ready to be written, and the state and the blobs that its recomputation starts from."""

    file: BanFile
    step: int
    training: Training | None  # before the disputed step; None at a peer that missed it
    blobs: Blobs

    def file_name(self, who: str) -> str:
        return evidence_name(self.step, who)

    @property
    def text(self) -> str:
        return to_text(self.file)


@dataclass(frozen=True)
class Certified:
    """A step as a member saw it, and its signed record."""

    seen: Outcome[Training]
    signed: CertifiedRecord


@dataclass
class History:
    """The signed records that changed the roster, and the last steps: kept by every member that may have to prove a ban.

    The signatures under a record come with the step after it, so evidence waits for that step (SPEC U2).
    """

    run: Run
    changes: list[CertifiedRecord] = field(default_factory=list)  # before the last ones
    last: tuple[Certified, ...] = ()  # the last steps: what may still be audited, and what a ban needs
    uncertified: Outcome[Training] | None = None  # the step after those

    def add(self, outcome: Outcome[Training]) -> list[BanEvidence]:
        """Note the end of a step, and return evidence of the bans of the step before, whose record it certifies. A record that a
        restart threw away is forgotten, and its bans with it: they are brought up again (SPEC B5)."""
        made = []
        before = self.uncertified
        if before is not None and before.record.step < outcome.record.step:
            made = self._certify(before, outcome.certificate)
        self.uncertified = outcome
        last = outcome.state.last
        closed = last is not None and len(outcome.closing) >= last.quorum  # else nobody could check it (SPEC U4)
        return made + (self._certify(outcome, outcome.closing) if closed else [])

    def _certify(self, seen: Outcome[Training], signatures: Mapping[PeerId, Signature]) -> list[BanEvidence]:
        certified = Certified(seen, sign_off(seen.record, signatures))
        banned: dict[PeerId, Judgement] = {}
        for judgement in seen.record.judgements:
            if judgement.banned is not None:
                banned.setdefault(judgement.banned, judgement)  # one is enough to be banned, and to prove it
        made = [ban_evidence(self.run, self, certified, judgement) for judgement in banned.values()]
        certified = replace(certified, seen=replace(seen, disclosed=()))  # the disclosed parts may be large
        for old in self.last[: -LAST_STEPS + 1]:
            if old.seen.record.changes_roster:
                self.changes.append(old.signed)
        self.last = (*self.last[-LAST_STEPS + 1 :], certified)
        return made


def ban_evidence(run: Run, history: History, certified: Certified, judgement: Judgement) -> BanEvidence:
    """Collect the proof of this judgement from what an honest member holds when the step's record is certified."""
    seen = certified.seen
    banned = judgement.banned
    assert banned is not None
    accuser = None if judgement.accuser is None else seen.accuses[judgement.attempt][PeerId(judgement.accuser)]
    shown = make_exhibit(run, judgement, seen, [last.seen.record for last in history.last])
    slot, *equivocation = seen.equivocations[banned] if judgement.kind == ChargeKind.EQUIVOCATION else (None,)
    unsummed = BanFile(
        format=FORMAT,
        banned=banned.hex(),
        run=founding_of(run),
        history=[SignedRecord.of(change) for change in history.changes],
        before=[SignedRecord.of(last.signed) for last in history.last],
        accusation=signed_message(accuser) if accuser else None,
        votes=[]
        if equivocation
        else _convicting(seen.votes.get(judgement.attempt, {}), judgement, _quorum(run, history)),
        equivocation=[signed_by(banned, envelope) for envelope in equivocation],
        phase=slot.phase if slot else 0,
        exhibit=shown.exhibit,
        record=SignedRecord.of(certified.signed),
        checksum="",
    )
    file = msgspec.structs.replace(unsummed, checksum=checksum(unsummed))
    return BanEvidence(file, seen.record.step, _state_at(judgement.step, history, seen), shown.blobs)


def _quorum(run: Run, history: History) -> int:
    """Votes that convict: a quorum of the roster before the step."""
    return (history.last[-1].seen.state.roster if history.last else Roster.founding(run)).quorum


def _convicting(votes: Mapping[PeerId, Announced], judgement: Judgement, enough: int) -> list[SignedMessage]:
    """The shortest convicting votes. A vote is signed as a whole: liars who pad theirs must not fill everybody's evidence."""
    found = [vote for vote in votes.values() if convicts(said_as(vote, Vote), judgement)]
    shortest = sorted(found, key=lambda vote: (len(vote.envelope.payload), vote.sender))[:enough]
    return [signed_message(vote) for vote in sorted(shortest, key=lambda vote: vote.sender)]


def _state_at(step: int, history: History, seen: Outcome[Training]) -> Training | None:
    """The model at the start of that step, one of the last ones."""
    outcomes = (*(last.seen for last in history.last), seen)
    return next((one.state.audit_records[step].training for one in outcomes if step in one.state.audit_records), None)


# Making an exhibit: the signed messages and the blobs that a ban can be recomputed from (SPEC E3).


@dataclass(frozen=True)
class ExhibitWithBlobs:
    """An exhibit and its blobs; both are empty where a ban rests on votes alone."""

    exhibit: Exhibit | None = None
    blobs: Blobs = field(default_factory=dict)


def make_exhibit(
    run: Run, judgement: Judgement, seen: Outcome[Training], before: Sequence[StepRecord]
) -> ExhibitWithBlobs:
    """Make the exhibit of this judgement, and open it as a stranger would; keep it only if it holds. Nothing shows that a message
    was never sent, and the accused may be gone from the record. `before` are the records of the steps before."""
    made = _exhibit_of(run, judgement, seen)
    disputed = next((record for record in (*before, seen.record) if record.step == judgement.step), None)
    if made.exhibit is None or disputed is None:
        return ExhibitWithBlobs()
    try:
        reporters = wrong_reporters(seen.record, judgement.step)
        open_exhibit(run, made.exhibit, judgement, disputed, reporters, Primitives())
    except UnprovedError:
        return ExhibitWithBlobs()
    return made


def _exhibit_of(run: Run, judgement: Judgement, seen: Outcome[Training]) -> ExhibitWithBlobs:
    """As far as this peer holds the messages: an observer, or a member that came back since, has none."""
    match judgement.kind:
        case ChargeKind.REPORT | ChargeKind.AGGREGATE:
            wanted = (judgement.attempt, judgement.part)
            found = next((one for one in seen.disclosed if (one.attempt, one.part) == wanted), None)
            return ExhibitWithBlobs() if found is None else _of_part(judgement, found)
        case ChargeKind.GRADIENT | ChargeKind.AUDITED_REPORT | ChargeKind.COVER:
            kept = seen.state.audit_records.get(judgement.step)
            return (
                ExhibitWithBlobs() if kept is None else _of_audit(judgement, kept, seen.record, run.parameters.coding)
            )
        case _:
            return ExhibitWithBlobs()  # an equivocation proves itself, and a deviation rests on votes


def _of_part(judgement: Judgement, found: Disclosure) -> ExhibitWithBlobs:
    """Of a report its sender's own messages; of an aggregate all that its owner had before it."""
    whole = judgement.kind == ChargeKind.AGGREGATE
    senders = sorted(found.proven_parts) if whole else [PeerId(judgement.target)]
    proven_parts = {sender: found.proven_parts[sender] for sender in senders}
    exhibit = Exhibit(
        attempt=found.attempt,
        commits=_signed(found.commits, senders),
        clips=[signed_message(found.clip)] if whole else [],
        reports=_signed(found.reports, senders),
        accuses=[signed_message(found.accuse)] if whole and found.accuse is not None else [],
        projection_key=found.projection_key.hex(),
        aggregates=[aggregate.hex() for aggregate in found.aggregates],
        parts=[
            PartProof(sender.hex(), proven.blob.digest.hex(), [node.hex() for node in proven.path])
            for sender, proven in proven_parts.items()
        ],
    )
    blobs = [*(proven.blob for proven in proven_parts.values()), found.center]
    return ExhibitWithBlobs(exhibit, {blob.digest: blob for blob in blobs})


def _of_audit(judgement: Judgement, kept: AuditRecord[Training], record: StepRecord, code: Code) -> ExhibitWithBlobs:
    """Commitments, and what was said about the aggregates. The gradient itself is recomputed from its seed."""
    target = PeerId(judgement.target)
    if judgement.kind == ChargeKind.GRADIENT:
        commit = signed_message(kept.accused(target, ChargeKind.GRADIENT))
        return ExhibitWithBlobs(Exhibit(0, [commit], [], [], [], "", [], []))
    if target in kept.probed:
        return ExhibitWithBlobs()  # it was accused of a report that it never sent (SPEC J5)
    cover = judgement.kind == ChargeKind.COVER
    reporters = sorted(wrong_reporters(record, judgement.step)) if cover else [PeerId(judgement.target)]
    blobs = Blob.cut(kept.aggregate_D, kept.bounds, code.centers)
    owner = PeerId(judgement.target)
    exhibit = Exhibit(
        attempt=kept.attempt,
        commits=_signed(kept.commits, reporters),
        clips=_signed(kept.clips, [owner]) if cover else [],
        reports=_signed(kept.reports, sorted(kept.reports) if cover else reporters),
        accuses=_signed(kept.accuses, [owner]) if cover else [],
        projection_key=kept.projection_key.hex(),
        aggregates=[blob.digest.hex() for blob in blobs],
        parts=[],
    )
    return ExhibitWithBlobs(exhibit, {blob.digest: blob for blob in blobs})


def _signed(announced: Mapping[PeerId, Announced], senders: Iterable[PeerId]) -> list[SignedMessage]:
    return [signed_message(announced[sender]) for sender in senders]
