"""From accusations to judgements: every member recomputes the disputed work, and a quorum decides (SPEC T1–T7)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from troth.crypto import Digest, PeerId
from troth.protocol.core.channel import Equivocations
from troth.protocol.core.records import MOST_OWED, Judgement, Owed
from troth.protocol.core.roles import AuditDuty, PendingAudits, Roles
from troth.protocol.core.roster import Roster
from troth.protocol.core.state import AuditRecord, Disclosure
from troth.protocol.step.attempt import AttemptAborted
from troth.protocol.step.audits import AuditFinding, PartFinding
from troth.protocol.wire.messages import NO_BASIS, Accuse, Announced, Ballot, ChargeKind, GuiltySide, Vote, said_as
from troth.protocol.wire.primitives import Primitives

T = TypeVar("T")


AUDIT_KINDS = (ChargeKind.GRADIENT, ChargeKind.AUDITED_REPORT, ChargeKind.DEVIATION)

Opinion = tuple[GuiltySide, Digest]  # and the state that it was found at, NO_BASIS where a record names that (SPEC U5)
Tally = dict[Opinion, set[PeerId]]  # voters by opinion


@dataclass(frozen=True)
class Charge:
    """An accusation that is heard or, without an accuser, a claim that follows from public numbers: nobody is banned if that is
    false."""

    accuser: PeerId | None
    target: PeerId
    kind: ChargeKind
    step: int  # the work of this step is disputed
    part: int | None = None
    message: Digest = NO_BASIS  # digest of the accused message, as the accuser names it

    def ballot(self, guilty: bool, state: Digest = NO_BASIS) -> Ballot:
        return self.cast(GuiltySide.ACCUSED if guilty else GuiltySide.ACCUSER, state)

    def cast(self, verdict: GuiltySide, state: Digest = NO_BASIS) -> Ballot:
        return Ballot(self.accuser, self.target, self.kind, self.step, self.part, verdict, self.message, state)

    @classmethod
    def of(cls, about: Ballot | Judgement) -> "Charge":
        accuser = None if about.accuser is None else PeerId(about.accuser)
        return cls(accuser, PeerId(about.target), about.kind, about.step, about.part, Digest(about.message))

    def is_brought_by(self, owner: "Charge") -> bool:
        """Whether the target of the other charge, an owner, is the accuser here, about the same part."""
        return self.kind == ChargeKind.REPORT and (self.accuser, self.part) == (owner.target, owner.part)

    def order(self) -> tuple[int, int, int, bytes, bytes, bytes]:
        part = -1 if self.part is None else self.part
        return self.kind, self.step, part, self.target, self.accuser or b"", self.message


@dataclass(frozen=True)
class Docket:
    """Charges that may be voted on in an attempt: those brought, and those that recomputing them may bring up."""

    step: int
    brought: tuple[Charge, ...] = ()  # by auditors and owners
    owners: Mapping[int, PeerId] = field(default_factory=dict)  # of the disputed parts
    doubted: frozenset[int] = frozenset()  # disputed parts whose announced numbers look wrong, whatever the owner says
    contributors: frozenset[PeerId] = frozenset()
    aggregates: Mapping[int, Digest] = field(default_factory=dict)  # messages that owners are judged by, by part
    reports: Mapping[PeerId, Digest] = field(default_factory=dict)  # messages that contributors are judged by
    peers: int = 0  # peers that were ever members: the most parts that an earlier step can have
    silent: frozenset[PeerId] = frozenset()  # owners of disputed parts that were not heard in Accuse
    empty: frozenset[int] = frozenset()  # parts of zeros: their owners say that there is no aggregate (SPEC A7)
    # Disputed parts, and who found fault with a leaf of each (SPEC V4).
    checks: Mapping[int, frozenset[PeerId]] = field(default_factory=dict)

    def admits(self, charge: Charge) -> bool:
        """Whether ballots on this charge count: others are dropped, so that padding costs nobody time (SPEC T4)."""
        if charge.accuser is not None:
            return charge in self.heard
        if charge.kind == ChargeKind.COVER:  # a member just back does not know the owners of that step, so all admit it
            return charge.step in self._audited_reports
        if charge.step != self.step or charge.part is None or charge.part not in self.owners:
            return False
        if charge.kind == ChargeKind.AGGREGATE:
            return charge == self.against_owner(charge.part)
        said = self.reports.get(charge.target, NO_BASIS)
        return charge.kind == ChargeKind.REPORT and charge.target in self.contributors and charge.message == said

    @property
    def most_ballots(self) -> int:
        """Upper limit of a vote. A longer one is not counted: it can only be padding, and each ballot costs everyone time."""
        covers = self.peers * len(self._audited_reports)
        return len(self.brought) + covers + len(self.owners) * (1 + len(self.contributors))

    @cached_property
    def heard(self) -> frozenset[Charge]:
        """The charges brought, as a set: every juror may vote on all of them."""
        return frozenset(self.brought)

    @cached_property
    def to_decide(self) -> frozenset[Charge]:
        """Charges brought, and those from public numbers: each is decided or dismissed, however few vote on it."""
        return self.heard | {self.against_owner(part) for part in self.doubted}

    def against_owner(self, part: int) -> Charge:
        said = self.aggregates.get(part, NO_BASIS)
        return Charge(None, self.owners[part], ChargeKind.AGGREGATE, self.step, part, said)

    @cached_property
    def _audited_reports(self) -> frozenset[int]:
        """Steps with a charge of an audited report."""
        return frozenset(charge.step for charge in self.brought if charge.kind == ChargeKind.AUDITED_REPORT)


def heard_audits(accuses: Mapping[PeerId, Announced], roles: Roles) -> tuple[Charge, ...]:
    """Charges of auditors against their targets, in a fixed order (SPEC T1, T2).

    Only the auditor drawn for a target may accuse it of its work in that step, and only its first accusation counts: else liars
    could keep everyone recomputing, or bring more charges than a vote can hold, each naming another message.
    """
    charges: dict[tuple[PeerId, AuditDuty], Charge] = {}
    for accuser, announced in accuses.items():
        for said in said_as(announced, Accuse).accusations:
            audit = AuditDuty(PeerId(said.target), said.step)
            if said.kind in AUDIT_KINDS and audit in roles.audits.get(accuser, ()):
                charge = Charge(accuser, audit.target, said.kind, said.step, None, Digest(said.message))
                charges.setdefault((accuser, audit), charge)
    return tuple(sorted(charges.values(), key=Charge.order))


def heard_owners(
    accuses: Mapping[PeerId, Announced],
    step: int,
    owners: tuple[PeerId, ...],
    reports: Mapping[PeerId, Announced],
    tools: Primitives,
) -> tuple[Charge, ...]:
    """Charges of owners against reporters about their own parts, in a fixed order (SPEC T1, T2)."""
    charges = {
        Charge(accuser, PeerId(said.target), ChargeKind.REPORT, step, said.part, Digest(said.message))
        for accuser, announced in accuses.items()
        for said in said_as(announced, Accuse).accusations
        if said.kind == ChargeKind.REPORT
        and said.step == step
        and said.part is not None
        and said.part < len(owners)
        and owners[said.part] == accuser != said.target
        and said.target in reports
        and message_of(reports[PeerId(said.target)], tools) == said.message
    }
    return tuple(sorted(charges, key=Charge.order))


def message_of(said: Announced, tools: Primitives) -> Digest:
    """Digest by which a charge names a message (SPEC E2)."""
    return tools.digest(said.envelope.payload)


def audit_ballots(
    kept: AuditRecord[T], charge: Charge, finding: AuditFinding, tools: Primitives, state: Digest = NO_BASIS
) -> list[Ballot]:
    """Ballots on an auditor's charge, and on owners that covered wrong reports (SPEC T3, T7).

    A juror of another class of hardware cannot tell whether bits fit, and does not vote (SPEC D3). An accusation of a message
    that was never sent is false (SPEC E2). `state` is the content that the gradient was taken at, as ballots name it.
    """
    guilty = finding.guilty_of(charge.kind)
    if guilty is None:
        return []
    guilty &= charge.message == message_of(kept.accused(charge.target, charge.kind), tools)
    found = finding.covered if guilty and charge.kind == ChargeKind.AUDITED_REPORT else ()
    suspects = kept.accuses.keys() - {charge.target}  # an owner that fell silent in Accuse covered nobody
    owners = {(kept.owners[part], part) for part in found if kept.owners[part] in suspects}
    # An owner that did name the reporter covered nobody: no quorum was left to judge.
    covering = sorted((owner, part) for owner, part in owners if not kept.names(owner, charge.target, part, tools))
    return [
        charge.ballot(guilty, state),
        *(
            Charge(None, owner, ChargeKind.COVER, charge.step, part, message_of(kept.accuses[owner], tools)).ballot(
                True, state
            )
            for owner, part in covering
        ),
    ]


def part_ballots(
    docket: Docket, part: int, named: Sequence[Charge] | None, finding: PartFinding | None
) -> list[Ballot]:
    """Ballots on a disputed part: on its owner, the reporters it named, and those it should have named (SPEC T6, T7).

    `named` is None for an owner that was not heard in Accuse: it covered nobody, it only fell silent.
    """
    step = docket.step
    against_owner = docket.against_owner(part)
    if finding is None:
        return [against_owner.cast(GuiltySide.WITHHELD)]
    covered = finding.covered(frozenset(charge.target for charge in named or ()))
    guilty_owner = finding.aggregate_wrong or (bool(covered) and named is not None)
    on_owner = against_owner.ballot(guilty_owner)
    if finding.could_be_made and not guilty_owner:
        on_owner = against_owner.cast(GuiltySide.WITHHELD)  # [A7]
    return [
        on_owner,
        *(charge.ballot(finding.convicts(charge.target)) for charge in named or ()),
        *(Charge(None, peer, ChargeKind.REPORT, step, part, docket.reports[peer]).ballot(True) for peer in covered),
    ]


def judge(attempt: int, votes: Mapping[PeerId, Announced], roster: Roster, docket: Docket) -> tuple[Judgement, ...]:
    """Decide each charge by a quorum of the members at step start: accused, accuser, or nobody (SPEC T4).

    Ballots that name different states count apart, so that every member reads the same state off the same votes (SPEC U5).
    Charges that were brought, and those against owners of parts whose numbers look wrong, are decided or dismissed; those that
    recomputing brings up count if a quorum votes on them. Ballots on anything else are dropped before they are counted.
    """
    tally = _tally(votes, roster, docket)
    judgements = []
    for charge in sorted(tally, key=Charge.order):
        voters = tally[charge]
        if charge in docket.to_decide or sum(map(len, voters.values())) >= roster.quorum:
            agreed = (opinion for opinion, said_so in voters.items() if len(said_so) >= roster.quorum)
            decided, state = next(agreed, (None, NO_BASIS))
            if decided is None and charge.kind == ChargeKind.AGGREGATE:
                # Else an owner that discloses to some only would split the jury, and get away with a cheat or a false accusation.
                against = _voters(voters, GuiltySide.ACCUSED, GuiltySide.WITHHELD)
                for other in docket.brought:
                    against |= _voters(tally[other], GuiltySide.ACCUSER) if other.is_brought_by(charge) else set()
                if charge.target in docket.silent:  # it covers nobody, so its jury says only what it saw
                    against |= _voters(voters, GuiltySide.ACCUSER)
                decided = GuiltySide.WITHHELD if len(against) >= roster.quorum else None
            about = charge.accuser, charge.target, charge.kind, charge.step, charge.part
            judgements.append(Judgement(*about, attempt, decided, charge.message, state))
    return tuple(judgements)


def _tally(votes: Mapping[PeerId, Announced], roster: Roster, docket: Docket) -> dict[Charge, Tally]:
    """Voters on every charge that counts."""
    tally: dict[Charge, Tally] = {charge: defaultdict(set) for charge in docket.to_decide}
    for voter, announced in votes.items():
        vote = said_as(announced, Vote)
        if voter in roster.members and len(vote.ballots) <= docket.most_ballots:
            for charge, opinion in opinions(vote).items():
                # Whoever is banned cannot be banned again.
                if docket.admits(charge) and charge.target not in roster.banned:
                    tally.setdefault(charge, defaultdict(set))[opinion].add(voter)
    return tally


class Trials:
    """Judgements and strikes of a step, attempt by attempt, the messages that prove them, and the auditors that were heard."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self.judgements: tuple[Judgement, ...] = ()
        self.accuses: dict[int, Mapping[PeerId, Announced]] = {}
        self.votes: dict[int, Mapping[PeerId, Announced]] = {}
        self.disclosed: tuple[Disclosure, ...] = ()
        self.struck: frozenset[PeerId] = frozenset()
        self._auditors: frozenset[PeerId] | None = None  # members heard when audits were
        # By attempt: parts whose announced numbers looked wrong, and parts of zeros.
        self._doubted: dict[int, tuple[frozenset[int], frozenset[int]]] = {}

    @property
    def audits_are_open(self) -> bool:
        """Whether audits are still to be heard: once, in the first attempt that gets to Accuse (SPEC N1)."""
        return self._auditors is None

    @property
    def banned(self) -> frozenset[PeerId]:
        return frozenset(j.banned for j in self.judgements if j.banned is not None)

    def undecided(self, attempt: int) -> bool:
        """Whether an aggregate's numbers look wrong in this attempt, and no quorum judged it: too few are left, or its owner
        disclosed to some only; or it is none, and no quorum finds one (SPEC A7). An owner that accuses a reporter casts no doubt
        on its own aggregate: else it could disclose to half of the jury and make the model stand still (SPEC G2)."""
        doubted, empty = self._doubted.get(attempt, (frozenset(), frozenset()))
        judged = [j for j in self.judgements if j.attempt == attempt and j.kind == ChargeKind.AGGREGATE]
        return any(j.verdict is None or j.part in empty for j in judged if j.part in doubted)

    def strike(self, silent: frozenset[PeerId]) -> None:
        """Strike members that did not open coin B, or had an attempt with open coins B repeated (SPEC N3)."""
        self.struck |= silent

    def hear_audits(self, accuses: Mapping[PeerId, Announced], roles: Roles) -> tuple[Charge, ...]:
        if not self.audits_are_open:
            return ()
        self._auditors = frozenset(accuses)
        return heard_audits(accuses, roles)

    def judge(
        self,
        attempt: int,
        accuses: Mapping[PeerId, Announced],
        votes: Mapping[PeerId, Announced],
        docket: Docket,
    ) -> None:
        """Record the judgements. If an owner cheated or withheld, the attempt is repeated without it (SPEC N1).

        The coins that draw auditors are open by now. An owner that makes the others discard them is struck, so that everyone
        audits in the next step: else one that dislikes a draw would accuse, disclose nothing, and get another (SPEC N3, R6).
        """
        new = judge(attempt, votes, self._roster, docket)
        self.judgements += new
        self.accuses[attempt], self.votes[attempt] = accuses, votes
        self._doubted[attempt] = docket.doubted, docket.empty
        shows = {j.part for j in new if j.banned is not None}  # other parts prove no ban, and are large
        self.disclosed = tuple(one for one in self.disclosed if one.attempt != attempt or one.part in shows)
        self._strike_for_checks(new, votes, docket)
        cheated = {j.banned for j in new if j.banned is not None and j.kind == ChargeKind.AGGREGATE}
        withheld = {PeerId(j.target) for j in new if j.verdict == GuiltySide.WITHHELD}
        if cheated or withheld:
            self.strike(frozenset(cheated | withheld))
            raise AttemptAborted(cheated | withheld)

    def _strike_for_checks(self, new: Sequence[Judgement], votes: Mapping[PeerId, Announced], docket: Docket) -> None:
        """Strike whoever found fault with a leaf of a part, if an honest juror finds none, and the owner, if one finds some or
        saw nothing; both, if nobody can tell. Else a dispute, which costs as much as a step, would be for free (SPEC V4).

        More than `L` jurors are needed, and no quorum: where an honest machine is down, liars who do not vote leave no quorum."""
        for part, checkers in docket.checks.items():
            about = [j for j in new if j.part == part and j.step == docket.step]
            banned = any(j.banned is not None for j in about)
            if not banned and GuiltySide.WITHHELD not in (j.verdict for j in about if j.kind == ChargeKind.AGGREGATE):
                self.strike(self._at_fault(part, checkers, votes, docket))

    def _at_fault(
        self, part: int, checkers: frozenset[PeerId], votes: Mapping[PeerId, Announced], docket: Docket
    ) -> frozenset[PeerId]:
        """The accusers of a part, its owner, or all; nobody, if a wrong report may have misled the accusers."""
        tally, liars, owner = _tally(votes, self._roster, docket), self._roster.liars, docket.owners[part]
        on_owner, wrong_reports = tally[docket.against_owner(part)], defaultdict[PeerId, set[PeerId]](set)
        for charge, voters in tally.items():
            if charge.kind == ChargeKind.REPORT and charge.part == part:
                wrong_reports[charge.target] |= _voters(voters, GuiltySide.ACCUSED)
        if any(len(voters) > liars for voters in wrong_reports.values()):
            return frozenset()
        right = len(_voters(on_owner, GuiltySide.ACCUSER)) > liars
        wrong = len(_voters(on_owner, GuiltySide.ACCUSED, GuiltySide.WITHHELD)) > liars
        found = (checkers if right else frozenset()) | ({owner} if wrong else frozenset())
        return found or checkers | {owner}

    def convict_equivocators(self, equivocations: Equivocations) -> None:
        """Ban equivocators without a vote: two signed messages for one slot prove the lie (SPEC Q6)."""
        for peer, (slot, _, _) in sorted(equivocations.items()):
            kind = ChargeKind.EQUIVOCATION
            self.judgements += (Judgement(None, peer, kind, slot.step, None, slot.attempt, GuiltySide.ACCUSED),)

    def owed_audits(self, roles: Roles, due: PendingAudits) -> tuple[tuple[Owed, ...], tuple[PeerId, ...]]:
        """Audits of earlier steps that the next one deals: those that came to nothing, since their auditor was not heard or their
        trial dismissed (SPEC R7), and those beside a liar's (SPEC R8). Also the targets of audits dealt too often."""
        dismissed = {
            AuditDuty(PeerId(j.target), j.step) for j in self.judgements if j.kind in AUDIT_KINDS and j.verdict is None
        }
        done = {audit for auditor in self._auditors or () for audit in roles.audits.get(auditor, ())} - dismissed
        before = {AuditDuty(PeerId(owed.target), owed.step): owed.times for owed in due.owed}
        # Also those that were owed: some may have had no possible auditor.
        dealt = {audit for audits in roles.audits.values() for audit in audits} | before.keys()
        gone = self.banned | set(self._roster.banned)
        times = dict.fromkeys(self._beside_liars(roles, due), 1)
        times |= {audit: before.get(audit, 0) + 1 for audit in dealt - done}
        wanted = {audit: so_often for audit, so_often in times.items() if audit.target not in gone}
        owed = [Owed(audit.target, audit.step, often) for audit, often in wanted.items() if often <= MOST_OWED]
        too_often = {audit.target for audit, often in wanted.items() if often > MOST_OWED}
        return tuple(sorted(owed)), tuple(sorted(too_often))

    def _beside_liars(self, roles: Roles, due: PendingAudits) -> set[AuditDuty]:
        """Audits of everyone who contributed in a step of which a liar was convicted: its colluders told their lies in that step
        before anyone could know who would be audited. Where everyone has just audited that step, there is nothing to repeat: nor
        in the closing step, in which all are auditors, and no part has an owner (SPEC U4)."""
        convicted = {
            j.banned for j in self.judgements if j.kind in AUDIT_KINDS and (j.target, j.step) == (j.banned, due.step)
        }
        together = convicted & set(due.contributors) and roles.validators and roles.owners
        return {AuditDuty(peer, due.step) for peer in due.contributors} if together else set()


def _voters(voters: Tally, *verdicts: GuiltySide) -> set[PeerId]:
    """Voters for one of these verdicts on work of this very step, whose ballots name no state."""
    return set().union(*(voters.get((verdict, NO_BASIS), set()) for verdict in verdicts))


def opinions(vote: Vote) -> dict[Charge, Opinion]:
    """Opinions of a vote by charge; two ballots on one charge count as none (SPEC T4)."""
    found: dict[Charge, list[Opinion]] = {}
    for ballot in vote.ballots:
        found.setdefault(Charge.of(ballot), []).append((ballot.verdict, Digest(ballot.state)))
    return {charge: told[0] for charge, told in found.items() if len(told) == 1}


def convicts(vote: Vote, judgement: Judgement) -> bool:
    """Whether this is a vote for the verdict."""
    return opinions(vote).get(Charge.of(judgement)) == (judgement.verdict, judgement.state)
