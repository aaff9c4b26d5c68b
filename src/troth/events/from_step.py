"""Steps as events: the one place where what the protocol agreed on is put into names and words.

A live member and a simulation both come through here, so they tell the same.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from troth.crypto import PeerId
from troth.events.kinds import Audit, Ballot, Ban, Began, Candidate, KnownPeer, Returned, Source, Stepped, Trial, Work
from troth.events.phrases import story_of
from troth.evidence.bans import evidence_name, reason_for
from troth.protocol.core.records import Judgement, StepRecord
from troth.protocol.core.roles import Roles
from troth.protocol.core.roster import Roster, least_to_move
from troth.protocol.core.run import Run
from troth.protocol.core.state import Outcome
from troth.protocol.step.trials import Charge, opinions
from troth.protocol.wire.messages import Announced, ChargeKind, GuiltySide, Vote, said_as

NameOf = Callable[[PeerId], str]
Votes = Mapping[PeerId, Announced]

_MOST_TRIALS = 64  # of one step that are told: liars can bring up many more, and everyone's ban is told besides
_MOST_PAIRS = 16  # of one step that are told: liars can name many
_BALLOTS: dict[GuiltySide, Ballot] = {
    GuiltySide.ACCUSED: "accused",
    GuiltySide.ACCUSER: "accuser",
    GuiltySide.WITHHELD: "withheld",
}


def event_of_outcome(run: Run, outcome: Outcome[Any], name: NameOf, *, of: int) -> Stepped:
    """A step as a member or an observer went through it; the caller adds times, losses and bytes. `of`: updates of the whole
    run."""
    record, roles, after, last = outcome.record, outcome.roles, outcome.state.roster, outcome.state.last
    assert last is not None
    quiet = {*record.members} - {*record.contributors, *roles.validators}
    return Stepped(
        step=record.step,
        updates=record.updates,
        of=of,
        members=len(after.members),
        moved=record.updated,
        withstands=after.liars,
        quorum=after.quorum,
        validators=_names(roles.validators, name),
        audits=tuple(
            Audit(name(auditor), name(audit.target), audit.step)
            for auditor, dealt in sorted(roles.audits.items())
            for audit in dealt
        ),
        unaudited=_unaudited(record, roles, name),
        silent=() if record.closing else _names(map(PeerId, quiet), name),
        owners=tuple(map(name, roles.owners)),
        trials=_trials(record, outcome.votes, name, last.quorum),
        banned=_bans(record, name),
        left=_names(map(PeerId, record.absent), name),
        expelled=_names(map(PeerId, record.expelled), name),
        link_disputes=tuple((name(PeerId(a)), name(PeerId(b))) for a, b in record.link_disputes[:_MOST_PAIRS]),
        returned=tuple(_returned(one.member, one.key, name) for one in record.returned),
        joined=_names((PeerId(newcomer.key) for newcomer in record.admitted), name),
        candidates=tuple(
            Candidate(name=name(PeerId(one.key)), worked=one.worked, missed=one.missed, needed=after.door.probation)
            for one in record.candidates
        ),
        away=_names((gone.peer for gone in after.away), name),
        ever=after.admitted,
        needed=least_to_move(after, run.parameters.validators),
        unjudged=record.unjudged,
        closing=record.closing,
        restarted=record.began and record.incarnation > 0,
        attempts=outcome.attempts,
        own_audits=len(outcome.audited),
        observed=outcome.observed,
    )


def began_by(run: Run, source: Source, of: int, peers: tuple[KnownPeer, ...]) -> Began:
    """The beginning of a run of the protocol, as far as its founding data say."""
    first, parameters = Roster.founding(run), run.parameters
    return Began(
        source=source,
        of=of,
        peers=peers,
        run=run.id.hex(),
        withstands=first.liars,
        quorum=first.quorum,
        validators=parameters.validators,
        probation=parameters.probation,
        exact=parameters.deviation is None,
    )


def known_peers(founders: Iterable[PeerId], name: NameOf, liars: Iterable[PeerId] = ()) -> tuple[KnownPeer, ...]:
    """The peers that a run begins with, in the order in which people count them."""
    lying = frozenset(liars)
    return tuple(KnownPeer(name=name(peer), key=peer.hex(), liar=peer in lying) for peer in founders)


def _names(peers: Iterable[PeerId], name: NameOf) -> tuple[str, ...]:
    return tuple(map(name, sorted(peers)))


def _unaudited(record: StepRecord, roles: Roles, name: NameOf) -> tuple[Work, ...]:
    """Work that nobody has audited though it was dealt: the auditor was lost, the trial dismissed, or a liar's beside it."""
    owed = {(PeerId(audit.target), audit.step) for audit in record.owed}
    given_up = {PeerId(target) for target in record.unaudited}
    owed |= {(a.target, a.step) for dealt in roles.audits.values() for a in dealt if a.target in given_up}
    return tuple(Work(name(target), step) for target, step in sorted(owed))


def _returned(member: bytes, key: bytes, name: NameOf) -> Returned:
    return Returned(peer=name(PeerId(member)), key="" if key == member else PeerId(key).hex()[:8])


def _bans(record: StepRecord, name: NameOf) -> tuple[Ban, ...]:
    """One for each peer, with the first reason: one is enough."""
    bans: dict[PeerId, Ban] = {}
    for judgement in record.judgements:
        if (banned := judgement.banned) is not None:
            file = evidence_name(record.step, name(banned))
            bans.setdefault(banned, Ban(peer=name(banned), reason=reason_for(judgement, name), evidence=file))
    return tuple(bans.values())


def _trials(record: StepRecord, votes: Mapping[int, Votes], name: NameOf, quorum: int) -> tuple[Trial, ...]:
    """One for all who accused somebody of the same, with the same end; where there are too many, those that banned somebody."""
    same: dict[tuple[object, ...], list[Judgement]] = {}
    for one in record.judgements:
        key = one.target, one.kind, one.step, one.part, one.attempt, one.verdict, one.banned
        same.setdefault(key, []).append(one)
    first = sorted(same.values(), key=lambda judged: judged[0].banned is None)[:_MOST_TRIALS]
    return tuple(_trial(record.step, judged, votes, name, quorum) for judged in same.values() if judged in first)


def _trial(step: int, judged: list[Judgement], votes: Mapping[int, Votes], name: NameOf, quorum: int) -> Trial:
    judgement, *others = judged
    banned = judgement.banned
    cast = {} if judgement.kind == ChargeKind.EQUIVOCATION else votes.get(judgement.attempt, {})
    trial = Trial(
        kind=judgement.kind.name.lower(),
        target=name(PeerId(judgement.target)),
        step=judgement.step,
        verdict="dismissed" if judgement.verdict is None else _BALLOTS[judgement.verdict],
        accuser=None if judgement.accuser is None else name(PeerId(judgement.accuser)),
        also=tuple(name(PeerId(other.accuser)) for other in others if other.accuser is not None),
        part=judgement.part,
        attempt=judgement.attempt,
        banned=None if banned is None else name(banned),
        votes={
            name(voter): ballot
            for voter, vote in sorted(cast.items())
            if (ballot := _ballot(judgement, vote)) is not None
        },
        quorum=quorum,
        evidence="" if banned is None else evidence_name(step, name(banned)),
    )
    return msgspec.structs.replace(trial, story=story_of(trial))


def _ballot(judgement: Judgement, vote: Announced) -> Ballot | None:
    """How a member voted on this charge; None if it did not, or contradicts itself (SPEC T4)."""
    opinion = opinions(said_as(vote, Vote)).get(Charge.of(judgement))
    return None if opinion is None else _BALLOTS[opinion[0]]
