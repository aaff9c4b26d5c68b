"""Checking evidence of a ban, offline, trusting nothing in the file but what the signatures carry (SPEC E1).

The claim that is proved: starting from the founders named by the run's hash, and following only records that more than half of
the members before them signed, the banned peer was judged by more than half of the members of its step. All of this is
about one run, and anybody can invent a run and put other people's public keys into it: which run it is, the reader must
know from elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from troth.crypto import Digest, PeerId, Slot, signed_bytes
from troth.evidence.file_format import (
    FORMAT,
    LAST_STEPS,
    BanFile,
    UnprovedError,
    envelope_of,
    expect,
    from_text,
    open_signed,
    refusing,
)
from troth.evidence.open_exhibit import OpenedExhibit, open_exhibit, wrong_reporters
from troth.evidence.signed_records import Name, follow_changes, known_run, names_in, open_record
from troth.protocol.core.records import Judgement, StepRecord
from troth.protocol.core.roles import AuditDuty, PendingAudits, draw_roles
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Run
from troth.protocol.history import key_of
from troth.protocol.step.trials import AUDIT_KINDS, convicts
from troth.protocol.wire.messages import NO_BASIS, Accusation, Accuse, ChargeKind, Phase, Vote, said_as
from troth.protocol.wire.primitives import Primitives

__all__ = ["Proof", "UnprovedError", "verify_ban"]


_FOUND = {
    ChargeKind.GRADIENT: "recomputed its gradient of step {step} and found that it does not follow from its seed",
    ChargeKind.AUDITED_REPORT: "recomputed its report of step {step} and found that it does not follow from its gradient",
    ChargeKind.REPORT: "found that its report about part {part} does not follow from the gradient it committed to",
    ChargeKind.AGGREGATE: "found that its aggregate of part {part} is wrong, or that it let a wrong report about it pass",
    ChargeKind.COVER: "found that it let a wrong report about part {part} pass in step {step}",
    ChargeKind.DEVIATION: "recomputed its gradient of step {step} and found it farther off than other hardware explains",
}


@dataclass(frozen=True)
class Proof:
    """The claim that a file proves, and the pieces that a recomputation needs."""

    run: Run
    judgement: Judgement
    before: tuple[StepRecord, ...]  # the records of the last steps
    step: int  # the step of the ban
    voters: tuple[PeerId, ...]  # whose votes for it are in the file: as many as it takes
    roster: Roster  # at the start of that step
    exhibit: OpenedExhibit | None = None  # signed messages that it can be recomputed from; None: it rests on votes
    signers: frozenset[PeerId] = frozenset()  # under the record of the disputed step
    names: Mapping[PeerId, str] = field(default_factory=dict)  # that the reader knows, beside the manifest's

    @property
    def disputed(self) -> StepRecord | None:
        """The record of the step whose work was disputed, if it was an earlier one."""
        return next((record for record in self.before if record.step == self.judgement.step), None)

    @property
    def state(self) -> Digest | None:
        """Digest of the content of the state that disputed gradients of an earlier step were taken at. Where every record names
        contents, that of the disputed step counts: it was signed before anybody was accused."""
        if self.disputed is None:
            return None
        named = self.run.parameters.content_every > 1 and self.judgement.state != NO_BASIS
        return Digest(self.judgement.state if named else self.disputed.state_before)

    @property
    def own_word(self) -> bool:
        """Whether the banned peer's own signatures fix all that a recomputation starts from (SPEC E6).

        A lying quorum signs records as it likes: with another seed, state or number of parts no honest gradient would come
        out. The banned peer signed the right record, in its next Commit. About a part its own messages say what it was given;
        whoever is banned for an accusation there may have been shown another commitment than the file holds.
        """
        if self.disputed is None:
            return (
                self.judgement.kind in (ChargeKind.REPORT, ChargeKind.AGGREGATE)
                and self.banned == self.judgement.target
            )
        return self.banned in self.signers and self.state == self.disputed.state_before

    @property
    def banned(self) -> PeerId:
        banned = self.judgement.banned
        assert banned is not None
        return banned

    @property
    def votes(self) -> int:
        return len(self.voters)

    @property
    def members(self) -> int:
        return len(self.roster.members)

    @property
    def name(self) -> Name:
        """Names for keys, as in the manifest, or as the reader knows them."""
        return names_in(self.run, self.roster, self.names)

    @property
    def rests_on_votes(self) -> bool:
        """Whether members' votes are all there is: nothing in the file can be recomputed, and no pair of messages shows it."""
        return self.exhibit is None and self.judgement.kind != ChargeKind.EQUIVOCATION

    def not_own_word(self) -> str:
        """Reason why a recomputation alone does not show that the ban is right, in plain words."""
        if self.disputed is not None and self.state != self.disputed.state_before:
            return "only those who voted name the state that it was computed at"
        what = "commitment" if self.disputed is None else "record of that step"
        return f"the banned peer did not sign the {what} that it was recomputed from: those who voted could have written another"

    def sentence(self) -> str:
        """The claim, in one sentence."""
        banned = f"{self.name(self.banned)} was banned in step {self.step}"
        if self.judgement.kind == ChargeKind.EQUIVOCATION:
            return f"{banned}: it signed two different messages for one and the same slot."
        if self.banned == self.judgement.target:
            found = _FOUND[self.judgement.kind].format(step=self.judgement.step, part=self.judgement.part)
        else:
            found = f"found its accusation of {self.name(PeerId(self.judgement.target))} to be false"
        beyond = " (a run beyond the guarantee)" if self.run.parameters.beyond_guarantee else ""
        return f"{banned}{beyond}: at least {self.votes} of {self.members} members {found}."

    def rests_on(self) -> str:
        """The assumption behind the claim, in plain words."""
        if self.judgement.kind == ChargeKind.EQUIVOCATION:
            return "Nobody's word is needed for that: both signatures are in the file."
        if self.rests_on_votes:
            return f"That rests on their votes: it is so unless {self.votes} members of this run lied together."
        return "What it follows from is signed, and in the file or beside it: it can be recomputed."


@refusing()
def verify_ban(text: str, run: Digest | None = None) -> Proof:
    """Return what the file proves of this run, or raise `UnprovedError`. Without a run given, it proves something about a run
    that may be invented: then the caller has to look at `Proof.run`."""
    file = from_text(text)
    expect(file.format == FORMAT, "unknown format")
    return _prove(file, known_run(file.run, run))


def _prove(file: BanFile, run: Run) -> Proof:
    tools = Primitives()
    roster = follow_changes(run, file.history, tools)
    before: list[StepRecord] = []
    signers: dict[int, frozenset[PeerId]] = {}  # by step
    for signed in file.before:
        before.append(open_record(run, signed, roster, tools))
        signers[before[-1].step] = frozenset(map(key_of, signed.signatures))  # each of which fits
        roster = roster.after(before[-1])
    record = open_record(run, file.record, roster, tools)
    steps = [old.step for old in (*before, record)]
    neighbours = list(range(max(0, record.step - LAST_STEPS), record.step + 1))
    expect(steps == neighbours, "the records are not of neighbouring steps")
    claim = _Claim(run, file, _judgement(record, key_of(file.banned)), tuple(before), record, roster, tools)
    return claim.prove(signers)


@dataclass(frozen=True)
class _Claim:
    """The ban that a file claims, after its records were checked."""

    run: Run
    file: BanFile
    judgement: Judgement
    before: tuple[StepRecord, ...]  # the records of the last steps
    record: StepRecord  # of the step that banned
    roster: Roster  # of that step
    tools: Primitives

    def prove(self, signers: Mapping[int, frozenset[PeerId]]) -> Proof:
        self._check_accusation()
        if self.judgement.kind == ChargeKind.EQUIVOCATION:
            self._check_equivocation()
            return Proof(self.run, self.judgement, self.before, self.record.step, (), self.roster)
        expect(not self.file.equivocation and self.file.phase == 0, "the file proves something else than it says")
        voters, members = self._voters(), len(self.roster.members)
        expect(len(voters) >= self.roster.quorum, f"{len(voters)} of {members} votes are no quorum")
        shown, signed = self._open_exhibit(), signers.get(self.judgement.step, frozenset())
        return Proof(self.run, self.judgement, self.before, self.record.step, voters, self.roster, shown, signed)

    def _check_accusation(self) -> None:
        """Check that the accuser said it; and, of an audit, that it was drawn and that the accused had contributed."""
        judgement, record, signed = self.judgement, self.record, self.file.accusation
        expect((signed is not None) == (judgement.accuser is not None), "accuser and accusation do not fit")
        disputed = {old.step: old for old in (*self.before, record)}.get(judgement.step)
        expect(disputed is not None, "the disputed step is not among the records")
        if judgement.kind in (*AUDIT_KINDS, ChargeKind.COVER):
            contributed = disputed is not None and judgement.target in disputed.commitments
            expect(contributed and judgement.step < record.step, "the accused had not contributed")
        else:
            expect(judgement.step == record.step, "the judgement is of another step's work")
        if signed is None:
            expect(judgement.kind not in AUDIT_KINDS, "an audit has an accuser")
            return
        accusation = said_as(open_signed(signed, self._slot(Phase.ACCUSE), self.tools), Accuse)
        accuser = key_of(signed.sender)
        expect(accuser == judgement.accuser, "the accusation is somebody else's")
        charge = Accusation(judgement.target, judgement.kind, judgement.step, judgement.part, judgement.message)
        expect(charge in accusation.accusations, "the accusation is of another")
        if judgement.kind in AUDIT_KINDS:
            expect(self._was_drawn(accuser), "the accuser was not drawn to audit the accused")

    def _was_drawn(self, accuser: PeerId) -> bool:
        """Whether the accuser had to audit the accused's work of the disputed step (SPEC R4)."""
        due = PendingAudits.between(self.before[-1], self.record)
        due = replace(due, everyone=True) if self.record.closing else due
        roles = draw_roles(self.run, self.roster, Digest(self.before[-1].randomness), due)
        return AuditDuty(PeerId(self.judgement.target), self.judgement.step) in roles.audits.get(accuser, ())

    def _check_equivocation(self) -> None:
        """Check for two different payloads, both signed by the banned peer for the same slot: nobody's word is needed."""
        file, tools = self.file, self.tools
        expect(len(file.equivocation) == 2 and not file.votes, "an equivocation is proved by two messages")
        expect(file.exhibit is None, "an equivocation needs no exhibit")
        slot, banned = self._slot(Phase(file.phase)), key_of(file.banned)
        payloads = set()
        for message in file.equivocation:
            envelope = envelope_of(message)
            signed = signed_bytes(slot, banned, tools.digest(envelope.payload))
            own = key_of(message.sender) == banned and tools.verify(banned, signed, envelope.signature)
            expect(own, "not its signature")
            payloads.add(envelope.payload)
        expect(len(payloads) == 2, "the two messages are the same")

    def _voters(self) -> tuple[PeerId, ...]:
        """The members that voted as judged. Every message listed must be such a vote, and no member may be listed twice."""
        messages = self.file.votes
        expect(len(messages) <= len(self.roster.members), "more votes than members")
        voters = [key_of(message.sender) for message in messages]
        expect(len(set(voters)) == len(voters), "a vote is listed twice")
        expect(set(voters) <= set(self.roster.members), "a vote is not of a member")
        for message in messages:
            vote = said_as(open_signed(message, self._slot(Phase.VOTE), self.tools), Vote)
            expect(convicts(vote, self.judgement), "a vote does not convict")
        return tuple(voters)

    def _open_exhibit(self) -> OpenedExhibit | None:
        if self.file.exhibit is None:
            return None
        disputed = next(old for old in (*self.before, self.record) if old.step == self.judgement.step)
        reporters = wrong_reporters(self.record, self.judgement.step)
        return open_exhibit(self.run, self.file.exhibit, self.judgement, disputed, reporters, self.tools)

    def _slot(self, phase: Phase) -> Slot:
        return Slot(self.run.id, self.record.step, phase, self.judgement.attempt, self.record.incarnation)


def _judgement(record: StepRecord, banned: PeerId) -> Judgement:
    found = [judgement for judgement in record.judgements if judgement.banned == banned]
    expect(bool(found), "the record bans somebody else")
    return found[0]
