"""From accusations to judgements: every member recomputes what is disputed, more than half decide."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from troth.crypto import PeerId
from troth.protocol.attempt import Dropped
from troth.protocol.audits import Finding, PartFinding
from troth.protocol.channel import Doubles
from troth.protocol.messages import Accuse, Announced, Ballot, Kind, Verdict, Vote, said_as
from troth.protocol.records import Judgement
from troth.protocol.roles import Audit, Due, Roles
from troth.protocol.roster import Roster
from troth.protocol.state import Kept

T = TypeVar("T")


AUDIT_KINDS = (Kind.GRADIENT, Kind.AUDITED_REPORT, Kind.DEVIATION)


@dataclass(frozen=True)
class Charge:
    """Who accuses whom of what. Without an accuser, the charge follows from public numbers, and nobody risks anything."""

    accuser: PeerId | None
    target: PeerId
    kind: Kind
    step: int  # whose work is disputed
    part: int | None = None

    def ballot(self, guilty: bool) -> Ballot:
        return self.cast(Verdict.ACCUSED if guilty else Verdict.ACCUSER)

    def cast(self, verdict: Verdict) -> Ballot:
        return Ballot(self.accuser, self.target, self.kind, self.step, self.part, verdict)

    @classmethod
    def of(cls, ballot: Ballot) -> "Charge":
        accuser = None if ballot.accuser is None else PeerId(ballot.accuser)
        return cls(accuser, PeerId(ballot.target), ballot.kind, ballot.step, ballot.part)

    def order(self) -> tuple[int, int, int, bytes, bytes]:
        return self.kind, self.step, -1 if self.part is None else self.part, self.target, self.accuser or b""


def heard_audits(accuses: Mapping[PeerId, Announced], roles: Roles) -> tuple[Charge, ...]:
    """What auditors say of their targets, in a fixed order (SPEC T1, T2).

    Only the auditor that was drawn for a target may accuse it of what it did in that step: else liars could keep everyone
    busy recomputing.
    """
    charges = {
        Charge(accuser, PeerId(said.target), said.kind, said.step)
        for accuser, announced in accuses.items()
        for said in said_as(announced, Accuse).accusations
        if said.kind in AUDIT_KINDS and Audit(PeerId(said.target), said.step) in roles.audits.get(accuser, ())
    }
    return tuple(sorted(charges, key=Charge.order))


def heard_owners(
    accuses: Mapping[PeerId, Announced], step: int, owners: tuple[PeerId, ...], contributors: Iterable[PeerId]
) -> tuple[Charge, ...]:
    """What owners say of reports about their own parts, in a fixed order (SPEC T1, T2)."""
    contributing = frozenset(contributors)
    charges = {
        Charge(accuser, PeerId(said.target), Kind.REPORT, step, said.part)
        for accuser, announced in accuses.items()
        for said in said_as(announced, Accuse).accusations
        if said.kind == Kind.REPORT
        and said.step == step
        and said.part is not None
        and said.part < len(owners)
        and owners[said.part] == accuser != said.target
        and said.target in contributing
    }
    return tuple(sorted(charges, key=Charge.order))


def audit_ballots(kept: Kept[T], charge: Charge, finding: Finding) -> list[Ballot]:
    """The verdict on what an auditor says, and on owners who let wrong reports pass (SPEC T3, T7).

    A juror of another class of hardware cannot tell whether bits fit, and says nothing (SPEC D3).
    """
    guilty = finding.guilty_of(charge.kind)
    if guilty is None:
        return []
    found = finding.covered if guilty and charge.kind == Kind.AUDITED_REPORT else ()
    suspects = kept.heard - {charge.target}  # an owner that fell silent in Accuse covered nobody
    covering = sorted({(kept.owners[part], part) for part in found if kept.owners[part] in suspects})
    return [
        charge.ballot(guilty),
        *(Charge(None, owner, Kind.COVER, charge.step, part).ballot(True) for owner, part in covering),
    ]


def part_ballots(
    owner: PeerId, step: int, part: int, named: frozenset[PeerId] | None, finding: PartFinding | None
) -> list[Ballot]:
    """Verdicts on a disputed part: its owner, those it named, and those it should have named (SPEC T6, T7).

    `named` is None for an owner that was not heard in Accuse: it covered nobody, it only fell silent.
    """
    against_owner = Charge(None, owner, Kind.AGGREGATE, step, part)
    if finding is None:
        return [against_owner.cast(Verdict.WITHHELD)]
    covered = finding.covered(named or frozenset())
    guilty_owner = finding.aggregate_wrong or (bool(covered) and named is not None)
    return [
        against_owner.ballot(guilty_owner),
        *(Charge(owner, peer, Kind.REPORT, step, part).ballot(finding.convicts(peer)) for peer in sorted(named or ())),
        *(Charge(None, peer, Kind.REPORT, step, part).ballot(True) for peer in covered),
    ]


def judge(attempt: int, votes: Mapping[PeerId, Announced], roster: Roster) -> tuple[Judgement, ...]:
    """More than half of the members at step start decide each charge: accused, accuser, or nobody (SPEC T4).

    A charge that fewer than half voted on is no charge at all: a single juror cannot bring one up.
    """
    tally: dict[Charge, dict[Verdict, int]] = {}
    for voter, announced in votes.items():
        assert isinstance(announced.message, Vote)
        if voter in roster.members:
            for charge, verdict in _verdicts(announced.message).items():
                tally.setdefault(charge, dict.fromkeys(Verdict, 0))[verdict] += 1
    judgements = []
    for charge in sorted(tally, key=Charge.order):
        counts = tally[charge]
        if sum(counts.values()) >= roster.majority:
            decided = next((verdict for verdict, count in counts.items() if count >= roster.majority), None)
            against = counts[Verdict.ACCUSED] + counts[Verdict.WITHHELD]
            if decided is None and charge.kind == Kind.AGGREGATE and against >= roster.majority:
                decided = Verdict.WITHHELD  # shown to some, it would otherwise split the jury and get away
            judgements.append(
                Judgement(charge.accuser, charge.target, charge.kind, charge.step, charge.part, attempt, decided)
            )
    return tuple(judgements)


class Trials:
    """The judgements of a step and the messages that prove them, attempt by attempt; whose audit and coin was heard."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self.judgements: tuple[Judgement, ...] = ()
        self.accuses: dict[int, Mapping[PeerId, Announced]] = {}
        self.votes: dict[int, Mapping[PeerId, Announced]] = {}
        self.struck: frozenset[PeerId] = frozenset()
        self._auditors: frozenset[PeerId] | None = None  # who was heard when audits were

    @property
    def audits_are_open(self) -> bool:
        """Audits are heard once, in the first attempt that gets so far (SPEC N1)."""
        return self._auditors is None

    @property
    def banned(self) -> frozenset[PeerId]:
        return frozenset(j.banned for j in self.judgements if j.banned is not None)

    def strike(self, silent: frozenset[PeerId]) -> None:
        """These did not open their coin B (SPEC N3)."""
        self.struck |= silent

    def hear_audits(self, accuses: Mapping[PeerId, Announced], roles: Roles) -> tuple[Charge, ...]:
        if not self.audits_are_open:
            return ()
        self._auditors = frozenset(accuses)
        return heard_audits(accuses, roles)

    def judge(self, attempt: int, accuses: Mapping[PeerId, Announced], votes: Mapping[PeerId, Announced]) -> None:
        """Take down what was decided. Without an owner that cheated or withheld the attempt is repeated (SPEC N1)."""
        new = judge(attempt, votes, self._roster)
        self.judgements += new
        self.accuses[attempt], self.votes[attempt] = accuses, votes
        cheated = {j.banned for j in new if j.banned is not None and j.kind == Kind.AGGREGATE}
        withheld = {PeerId(j.target) for j in new if j.verdict == Verdict.WITHHELD}
        if cheated or withheld:
            raise Dropped(cheated | withheld)

    def convict_doubles(self, doubles: Doubles) -> None:
        """Two signed messages in one place prove themselves (SPEC Q6)."""
        for peer, (place, _, _) in sorted(doubles.items()):
            kind = Kind.EQUIVOCATION
            self.judgements += (Judgement(None, peer, kind, place.step, None, place.attempt, Verdict.ACCUSED),)

    def lost_audits(self, roles: Roles, due: Due) -> tuple[tuple[PeerId, ...], tuple[PeerId, ...]]:
        """Whose audit was lost for the first time, and whose for the second (SPEC R7)."""
        done = {audit for auditor in self._auditors or () for audit in roles.audits.get(auditor, ())}
        dealt = {audit for audits in roles.audits.values() for audit in audits}
        owed = {audit.target for audit in dealt - done if audit.step == due.step} - self.banned
        again = {target for target in due.owed if Audit(target, due.step - 1) not in done}
        return tuple(sorted(owed)), tuple(sorted(again - set(self._roster.banned) - self.banned))


def _verdicts(vote: Vote) -> dict[Charge, Verdict]:
    """A voter's verdicts by charge; two ballots on the same charge count as none."""
    found: dict[Charge, list[Verdict]] = {}
    for ballot in vote.ballots:
        found.setdefault(Charge.of(ballot), []).append(ballot.verdict)
    return {charge: verdicts[0] for charge, verdicts in found.items() if len(verdicts) == 1}
