"""Attacks on the door: by strangers, by candidates, and by members who help them (SPEC J3–J7, G1)."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.protocol.core.test_door import KEYS, OPEN, roster_of
from tests.protocol.returning_members import PEERS, roster_after
from troth.crypto import PeerId
from troth.protocol.core.records import Candidate, Judgement, Newcomer, Returned
from troth.protocol.core.roles import PendingAudits
from troth.protocol.core.roster import Roster
from troth.protocol.step.closing import spoiled
from troth.protocol.step.trials import Trials
from troth.protocol.wire.messages import Kind, Verdict


def conviction(target: PeerId, step: int, kind: Kind = Kind.GRADIENT) -> Judgement:
    return Judgement(PEERS[0], target, kind, step, None, 0, Verdict.ACCUSED)


def test_nobody_is_a_member_and_a_candidate_at_once() -> None:
    """[J4, J5, B3] A liar that comes back under the very key that wins a slot in that step would commit to two gradients in each
    step: audits look at the right one, and the wrong one is averaged."""
    roster = roster_after(roster_of(), step=2, absent=(PEERS[0],))
    key = KEYS[0]
    after = roster_after(roster, step=3, returned=(Returned(PEERS[0], key),), candidates=(Candidate(key, "", 3, None),))
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
