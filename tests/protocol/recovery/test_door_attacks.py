"""Attacks on the door: by strangers, by candidates, and by members who help them (SPEC J3–J7, G1)."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest

from tests.protocol.core.test_door import IDENTITY_OF, KEYS, OPEN, RUN, roster_of, tickets_of
from tests.protocol.returning_members import PEERS, SUCCESSORS, rejoin_request, rejoin_slot, roster_after
from tests.protocol.samples import quiet_record
from tests.protocol.scripted_world import plan, run_world
from troth.crypto import Digest, PeerId, Stream, stream
from troth.protocol.core.door import best_tickets, ticket_bytes
from troth.protocol.core.records import Candidate, Judgement, Newcomer, Returned, StepRecord
from troth.protocol.core.roles import PendingAudits
from troth.protocol.core.roster import MOST_AWAY, Away, Roster
from troth.protocol.core.state import acceptance_bytes, is_request, returning
from troth.protocol.recovery import ledger as ledger_module
from troth.protocol.step.closing import spoiled
from troth.protocol.step.trials import Trials
from troth.protocol.wire.messages import Announced, ChargeKind, Commit, Envelope, GuiltySide, SignedRejoin
from troth.protocol.wire.primitives import Primitives


def conviction(target: PeerId, step: int, kind: ChargeKind = ChargeKind.GRADIENT) -> Judgement:
    return Judgement(PEERS[0], target, kind, step, None, 0, GuiltySide.ACCUSED)


def test_nobody_is_a_member_and_a_candidate_at_once() -> None:
    """[J4, J5, B3] A liar that comes back under the very key that wins a slot in that step would commit to two gradients in each
    step: audits look at the right one, and the wrong one is averaged."""
    roster = roster_after(roster_of(), step=2, absent=(PEERS[0],))
    key = KEYS[0]
    after = roster_after(roster, step=3, returned=(Returned(PEERS[0], key),), candidates=(Candidate(key, "", 3, 0, 0),))
    assert key in after.members
    assert after.door.keys.isdisjoint(after.members)


def test_a_strangers_lie_in_the_last_step_takes_no_update_back() -> None:
    """[U4, J5] Its gradient went into nothing. Else a ticket would be enough to undo the end of any run."""
    trials, last = Trials(roster_of()), PendingAudits(7, tuple(PEERS), probed=(KEYS[0],))
    trials.judgements = (conviction(KEYS[0], 7),)
    assert not spoiled(trials, last)
    trials.judgements += (conviction(PEERS[1], 7),)
    assert spoiled(trials, last)


def come_and_be_banned(roster: Roster, key: PeerId, step: int) -> Roster:
    inside = roster_after(roster, step=step, admitted=(Newcomer(key, ""),))
    return roster_after(inside, step=step + 1, judgements=(conviction(key, step),))


def test_strangers_that_come_in_to_be_banned_lower_nothing() -> None:
    """[G1, G2, J7] A liar that works until it is in, lies, and is banned leaves the run as it was: as many liars may be left, and
    as few may be missing. Else two such visits would make a run of seven deaf to the liars among its founders."""
    founding = roster = roster_of(byzantine=2)
    for number, key in enumerate(KEYS):
        roster = come_and_be_banned(roster, key, 2 * number)
        assert (roster.liars, roster.quorum, roster.byzantine) == (founding.liars, founding.quorum, founding.byzantine)
        for members in range(len(PEERS) + 1):
            assert roster.moves(members, members) == founding.moves(members, members)


def test_a_banned_founder_is_a_liar_less_whoever_came_in() -> None:
    """[G1, J7] And one that came in and returned under a successor key counts as one seat."""
    roster = roster_of(byzantine=2)
    for number, key in enumerate(KEYS[:7]):
        roster = roster_after(roster, step=number, admitted=(Newcomer(key, ""),))
    assert (roster.liars, roster.seats) == (4, 14)
    gone = roster_after(roster, step=9, judgements=(conviction(PEERS[3], 8),))
    assert (gone.liars, gone.seats) == (3, 14)
    away = roster_after(roster, step=9, absent=(KEYS[0],))
    back = roster_after(away, step=12, returned=(Returned(KEYS[0], KEYS[7]),))
    for banned in (KEYS[0], KEYS[7]):
        after = roster_after(back, step=13, judgements=(conviction(banned, 8),))
        assert KEYS[7] in after.banned
        assert (after.liars, after.seats) == (3, 13)


@pytest.mark.parametrize("probation", range(1, 13))
def test_no_slot_is_drawn_before_strangers_can_know_the_draw(probation: int) -> None:
    """[J4] A record is certified, and shown, in the step after it, whose Commits have tickets in them already. With a lottery in
    every step only those could have one whom a member told the draw."""
    door = replace(OPEN, probation=probation)
    lotteries = [step for step in range(60) if door.is_lottery(step)]
    assert all(later - earlier >= 2 for earlier, later in pairwise(lotteries))


# Seats without work


def with_absent_newcomers(count: int, updates: int = 0) -> Roster:
    """A run of seven that took in so many, one after another, each of whom went away at once."""
    roster = roster_of(byzantine=2)
    for number, key in enumerate(KEYS[:count]):
        roster = roster_after(roster, step=20 * number, admitted=(Newcomer(key, ""),), updates=updates)
        roster = roster_after(roster, step=20 * number + 1, absent=(key,), updates=updates)
    return roster


def commits_that_list(*rejoins: SignedRejoin) -> dict[PeerId, Announced]:
    commit = Commit(None, bytes(32), bytes(32), rejoins=rejoins)
    return {PEERS[0]: Announced(PEERS[0], commit, Envelope(b"", bytes(64)))}


def test_seats_that_cost_no_work_do_not_come_back_all_at_once() -> None:
    """[J7, B3] One machine passes probation again and again, and each name goes away once it is in. Would all of them come back
    in one step, they would be a quorum, for the work of one member."""
    roster, step = roster_after(with_absent_newcomers(8), step=399), 400
    everyone = roster_after(roster, step=step, returned=tuple(Returned(key, key) for key in KEYS))
    assert everyone.quorum <= len(KEYS)
    listed = commits_that_list(*(SignedRejoin(key, key, bytes(64)) for key in KEYS))
    for _ in range(3):
        back = returning(listed, roster, step)
        assert len(back) == 1
        assert back[0].member == roster.away[0].peer, "the longest away comes first"
        roster = roster_after(roster, step=step, returned=back)
        soon = roster_after(roster, step=step + OPEN.probation - 1)
        assert returning(listed, soon, step + OPEN.probation) == ()
        roster, step = roster_after(soon, step=step + OPEN.probation), step + OPEN.probation + 1
    founder = roster_after(roster, step=step, absent=(PEERS[1],))
    again = returning(commits_that_list(SignedRejoin(PEERS[1], PEERS[1], bytes(64))), founder, step + 4)
    assert [PeerId(one.member) for one in again] == [PEERS[1]], "founders come back as ever"


def test_whoever_comes_back_takes_the_place_of_somebody_who_comes_in() -> None:
    """[J7]"""
    roster = roster_after(with_absent_newcomers(1), step=30, returned=(Returned(KEYS[0], KEYS[0]),))
    assert roster.door.most_admitted(len(roster.members)) == 0
    assert roster_after(roster, step=30 + OPEN.probation).door.most_admitted(len(roster.members)) == 1


def test_strangers_that_come_and_go_do_not_stop_the_run() -> None:
    """[J7, G1, G2] Those who cannot come back any more are counted on no longer; else everyone who ever came would raise `L` and
    the number of those who are missing, until the founders are no quorum among themselves."""
    founding, gone = roster_of(byzantine=2), with_absent_newcomers(8)
    assert gone.seats == 15
    assert not gone.moves(len(PEERS), len(PEERS)), "they may still come back"
    change = {"absent": (PEERS[0],), "updates": MOST_AWAY + 1}
    later = roster_after(gone, step=900, **change)
    assert (later.seats, later.liars, later.byzantine) == (founding.seats, founding.liars, founding.byzantine)
    assert later.moves(len(PEERS) - 1, len(PEERS) - 1)
    quiet = roster_after(gone, step=900, updates=MOST_AWAY + 1)
    assert quiet.seats == gone.seats, "followers of changes alone see no quiet records"


def next_record(roster: Roster, step: int, updates: int, draw: Stream) -> StepRecord:
    """A step in which anything may happen at the door and to the members."""

    def pick(peers: Iterable[PeerId], often: float) -> list[PeerId]:
        found = sorted(peers)
        return [found[int(draw.integers(len(found), 1)[0])]] if found and draw.uniform(1)[0] < often else []

    new = sorted(set(KEYS) - roster.known)
    seated = [Candidate(key, "", step, 0, 0) for key in pick(new, 0.5)]
    going = [one for one in roster.door.candidates if draw.uniform(1)[0] < 0.9]
    admitted = pick([PeerId(one.key) for one in going], 0.3)
    banned = pick({*roster.members, *roster.door.keys, *(gone.peer for gone in roster.away)} - set(admitted), 0.1)
    back = [Returned(gone.peer, key) for gone in roster.away[:1] for key in pick({gone.peer, *new[1:2]}, 0.3)]
    absent = [peer for peer in pick(roster.members, 0.2) if peer not in banned]
    return quiet_record(
        step,
        roster.members,
        updates=updates,
        judgements=tuple(conviction(peer, step - 1) for peer in banned),
        absent=tuple(absent),
        returned=tuple(one for one in back if not {one.key, one.member} & {*banned, *(c.key for c in seated)}),
        admitted=tuple(Newcomer(key, "") for key in admitted),
        candidates=tuple(one for one in (*going, *seated) if one.key not in {*admitted, *banned}),
    )


@pytest.mark.parametrize("seed", range(40))
def test_followers_of_changes_count_the_same_quorum_as_members(seed: int) -> None:
    """[E1, E4, J7] Whoever is shown only the records that changed the roster, as evidence and proofs of models do."""
    draw, member, follower = stream(Digest(seed.to_bytes(32)), "door"), roster_of(byzantine=2), roster_of(byzantine=2)
    updates = 0
    for step in range(150):
        record = next_record(member, step, updates := updates + 9, draw)
        member = member.after(record)
        if record.changes_roster:
            follower = follower.after(record)
        counted = [
            (one.members, one.banned, one.seats, one.byzantine, one.liars, one.quorum) for one in (member, follower)
        ]
        assert counted[0] == counted[1]
        assert member.door.keys.isdisjoint({*member.members, *member.banned})
        assert member.liars <= member.byzantine <= 2 * member.seats // len(PEERS)


# Names that somebody else made


def test_nobody_comes_back_under_the_key_of_a_stranger() -> None:
    """[B3, B8, J3] A liar that is absent names the key of an honest stranger at the door as its own from now on. When the liar is
    convicted, that key is banned with it."""
    liar, stranger = PEERS[-1], SUCCESSORS[0]
    roster = replace(roster_of(), members=tuple(PEERS[:-1]), away=(Away(3, liar, 0),))
    slot, right = rejoin_slot(6), rejoin_request(liar, stranger)
    assert is_request(slot, right, roster, Primitives()), "with the stranger's consent"
    mine = IDENTITY_OF[liar].sign(acceptance_bytes(slot, liar, stranger, 3))
    for accepted in (None, mine, right.signature, bytes(64)):
        assert not is_request(slot, msgspec.structs.replace(right, accepted=accepted), roster, Primitives())


def test_nobody_makes_tickets_for_the_key_of_somebody_else() -> None:
    """[J4, B8] A liar makes a ticket for the successor key under which an absent member asks to come back. Once that key has a
    slot, it was seen, and cannot be anybody's successor: the member has to go through probation."""
    absent, successor = PEERS[-1], SUCCESSORS[0]
    roster = replace(roster_of(), members=tuple(PEERS[:-1]), away=(Away(3, absent, 0),))
    assert roster.may_return(Returned(absent, successor), 8)
    (right,) = tickets_of(successor, 1)
    assert best_tickets(RUN, OPEN, [right], roster.known, Primitives()) == [right]
    mine = IDENTITY_OF[PEERS[0]].sign(ticket_bytes(RUN, OPEN.seed, right))
    forged = [
        msgspec.structs.replace(right, signature=bytes(64)),
        msgspec.structs.replace(right, signature=mine),
        msgspec.structs.replace(right, address="elsewhere:1"),
    ]
    won = best_tickets(RUN, replace(OPEN, ticket_bits=0), forged, roster.known, Primitives())
    seated = tuple(Candidate(ticket.key, "", 7, 0, 0) for ticket in won)
    after = roster_after(replace(roster, door=OPEN), step=7, candidates=seated)
    assert after.may_return(Returned(absent, successor), 8)


@pytest.mark.long
def test_the_door_stays_open_however_long_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """[J3, J8] Members hold the last records only, and strangers follow those that changed the members."""
    monkeypatch.setattr(ledger_module, "MOST_CERTIFIED_RECORDS", 4)
    late = replace(plan(liars=(), steps=20), byzantine=1, probation=4, strangers={5: (20.0, "honest")})
    seen = run_world(late)
    assert any(record.admitted for record in seen.records)
