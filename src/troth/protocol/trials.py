"""From accusations to judgements: every member recomputes what is disputed, more than half decide."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from troth.crypto import PeerId
from troth.protocol.audits import PartFinding, audit
from troth.protocol.messages import Accuse, Announced, Ballot, Kind, Verdict, Vote
from troth.protocol.records import Judgement
from troth.protocol.reports import CONVICT_AT
from troth.protocol.roles import Roles
from troth.protocol.roster import Roster
from troth.protocol.state import Kept, Peer

T = TypeVar("T")


AUDIT_KINDS = (Kind.GRADIENT, Kind.AUDITED_REPORT)


@dataclass(frozen=True)
class Charge:
    """Who accuses whom of what. Without an accuser, the charge follows from public numbers, and nobody risks anything."""

    accuser: PeerId | None
    target: PeerId
    kind: Kind
    part: int | None = None

    def ballot(self, guilty: bool) -> Ballot:
        verdict = Verdict.ACCUSED if guilty else Verdict.ACCUSER
        return Ballot(self.accuser, self.target, self.kind, self.part, verdict)

    @classmethod
    def of(cls, ballot: Ballot) -> "Charge":
        accuser = None if ballot.accuser is None else PeerId(ballot.accuser)
        return cls(accuser, PeerId(ballot.target), ballot.kind, ballot.part)

    def order(self) -> tuple[int, int, bytes, bytes]:
        return self.kind, -1 if self.part is None else self.part, self.target, self.accuser or b""


def heard(
    accuses: Mapping[PeerId, Announced], roles: Roles, owners: tuple[PeerId, ...], contributors: frozenset[PeerId]
) -> tuple[Charge, ...]:
    """The accusations that are heard, in a fixed order (SPEC T1, T2).

    Only the validator that was drawn for a target may accuse it of a wrong gradient, and only a part's owner may accuse
    a contributor of a wrong report about that part: else liars could keep everyone busy recomputing.
    """
    charges: set[Charge] = set()
    for accuser, announced in accuses.items():
        assert isinstance(announced.message, Accuse)
        for accusation in announced.message.accusations:
            target, part = PeerId(accusation.target), accusation.part
            if accusation.kind in AUDIT_KINDS and roles.targets.get(accuser) == target:
                charges.add(Charge(accuser, target, accusation.kind))
            elif (
                accusation.kind == Kind.REPORT
                and part is not None
                and part < len(owners)
                and owners[part] == accuser != target
                and target in contributors
            ):
                charges.add(Charge(accuser, target, Kind.REPORT, part))
    return tuple(sorted(charges, key=Charge.order))


async def gradient_ballots(peer: Peer[T], kept: Kept[T], charge: Charge) -> list[Ballot]:
    """The verdict on a wrong gradient, and on owners who let its wrong reports pass (SPEC T3, T7)."""
    finding = await audit(peer, kept, charge.target, CONVICT_AT)
    found = finding.covered if finding.kind == charge.kind else ()
    covering = sorted({(kept.owners[part], part) for part in found if kept.owners[part] != charge.target})
    return [
        charge.ballot(finding.kind == charge.kind),
        *(Charge(None, owner, Kind.COVER, part).ballot(True) for owner, part in covering),
    ]


def part_ballots(owner: PeerId, part: int, named: frozenset[PeerId], finding: PartFinding) -> list[Ballot]:
    """Verdicts on a disputed part: its owner, those the owner named, and those it should have named (SPEC T6, T7)."""
    covered = finding.covered(named)
    guilty_owner = finding.aggregate_wrong or bool(covered)
    return [
        Charge(None, owner, Kind.AGGREGATE, part).ballot(guilty_owner),
        *(Charge(owner, peer, Kind.REPORT, part).ballot(finding.convicts(peer)) for peer in sorted(named)),
        *(Charge(None, peer, Kind.REPORT, part).ballot(True) for peer in covered),
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
            judgements.append(Judgement(charge.accuser, charge.target, charge.kind, charge.part, attempt, decided))
    return tuple(judgements)


def _verdicts(vote: Vote) -> dict[Charge, Verdict]:
    """A voter's verdicts by charge; two ballots on the same charge count as none."""
    found: dict[Charge, list[Verdict]] = {}
    for ballot in vote.ballots:
        found.setdefault(Charge.of(ballot), []).append(ballot.verdict)
    return {charge: verdicts[0] for charge, verdicts in found.items() if len(verdicts) == 1}
