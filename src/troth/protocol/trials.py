"""From accusations to judgements: every member recomputes what is disputed, more than half decide."""

from collections.abc import Mapping
from typing import TypeVar

from troth.crypto import PeerId
from troth.protocol.audits import audit
from troth.protocol.messages import Accuse, Announced, Ballot, Kind, Verdict, Vote
from troth.protocol.records import Judgement
from troth.protocol.reports import CONVICT_AT
from troth.protocol.roles import Roles
from troth.protocol.roster import Roster
from troth.protocol.state import Kept, Peer

T = TypeVar("T")

Charge = tuple[PeerId, PeerId, Kind]  # accuser, target, kind


def docket(accuses: Mapping[PeerId, Announced], roles: Roles) -> tuple[Charge, ...]:
    """The accusations that are heard, in the order of keys (SPEC T1, T2).

    Only the validator that was drawn for a target may accuse it of a wrong gradient, once: else liars could keep
    everyone busy recomputing.
    """
    charges: set[Charge] = set()
    for accuser, announced in accuses.items():
        assert isinstance(announced.message, Accuse)
        for accusation in announced.message.accusations:
            target = PeerId(accusation.target)
            if accusation.kind == Kind.GRADIENT and roles.targets.get(accuser) == target:
                charges.add((accuser, target, accusation.kind))
    return tuple(sorted(charges))


async def ballots(peer: Peer[T], kept: Kept[T], charges: tuple[Charge, ...]) -> Vote:
    """One verdict for every charge, each from this peer's own recomputation (SPEC T3)."""
    cast = []
    for accuser, target, kind in charges:
        finding = await audit(peer, kept, target, CONVICT_AT)
        verdict = Verdict.ACCUSED if finding.guilty else Verdict.ACCUSER
        cast.append(Ballot(accuser, target, kind, verdict))
    return Vote(tuple(cast))


def judge(charges: tuple[Charge, ...], votes: Mapping[PeerId, Announced], roster: Roster) -> tuple[Judgement, ...]:
    """More than half of the members at step start decide: accused, accuser, or nobody (SPEC T4)."""
    judgements = []
    for charge in charges:
        counts = dict.fromkeys(Verdict, 0)
        for voter, announced in votes.items():
            if voter not in roster.members:
                continue
            assert isinstance(announced.message, Vote)
            for verdict in _verdicts_on(charge, announced.message):
                counts[verdict] += 1
        decided = [verdict for verdict, count in counts.items() if count >= roster.majority]
        judgements.append(Judgement(*charge, decided[0] if decided else None))
    return tuple(judgements)


def _verdicts_on(charge: Charge, vote: Vote) -> list[Verdict]:
    """A voter's verdict on one charge; two ballots on the same charge count as none."""
    found = [b.verdict for b in vote.ballots if (b.accuser, b.target, b.kind) == charge]
    return found if len(found) == 1 else []
