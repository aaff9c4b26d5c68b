"""Returns in the roster: the members that may come back, when, and under which key (SPEC B3, B8)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.protocol.returning_members import PEERS, SUCCESSORS, roster_after, roster_with_one_absent
from troth.crypto import PeerId
from troth.protocol.core.records import Judgement, Returned
from troth.protocol.core.roster import MOST_AWAY, MOST_WAIT, STRIKE_STEPS, Away
from troth.protocol.wire.messages import ChargeKind, GuiltySide


def test_only_an_absent_member_may_come_back() -> None:
    """[B8] For at most 500 updates; and nobody who is a member, was banned, expelled, or never was one."""
    absent, member, stranger = PEERS[-1], PEERS[0], SUCCESSORS[0]
    assert roster_with_one_absent().may_return(Returned(absent, absent), 8)
    assert roster_with_one_absent(updates=5 + MOST_AWAY).may_return(Returned(absent, absent), 900)
    assert not roster_with_one_absent(updates=6 + MOST_AWAY).may_return(Returned(absent, absent), 900)
    for who in (member, stranger):
        assert not roster_with_one_absent().may_return(Returned(who, who), 8)
    for gone in ({"banned": (absent,), "away": ()}, {"away": ()}):  # banned; expelled
        assert not roster_with_one_absent(**gone).may_return(Returned(absent, absent), 8)


def test_a_member_may_come_back_under_its_own_key_or_a_new_one() -> None:
    """[B8] One's own, or one that was never seen: not another member's, a banned one, or one that was given up; and a key."""
    absent = PEERS[-1]
    roster = roster_with_one_absent(banned=(SUCCESSORS[1],), successors=((SUCCESSORS[2], SUCCESSORS[3]),))
    allowed = {
        absent: True,
        SUCCESSORS[0]: True,
        PEERS[0]: False,
        SUCCESSORS[1]: False,
        SUCCESSORS[2]: False,
        SUCCESSORS[3]: False,
    }
    for key, may in {**allowed, PeerId(bytes(32)): False}.items():
        assert roster.may_return(Returned(absent, key), 8) is may, key


def test_a_member_that_comes_back_often_waits_longer_each_time() -> None:
    """[B8] 2^k steps after k returns within a thousand, at most 64, whatever its keys were called; nobody is out for it."""
    absent = PEERS[-1]

    def first(returns: Sequence[tuple[int, PeerId]], **given: Any) -> int:
        roster = roster_with_one_absent(returns=tuple(returns), away=(Away(1500, absent, 5),), **given)
        return next(step for step in range(1500, 2000) if roster.may_return(Returned(absent, absent), step)) - 1500

    times = [first([(1400 + k, absent) for k in range(count)]) for count in range(9)]
    assert times == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    assert times[-1] == MOST_WAIT
    assert first([(1400, PEERS[0])]) == 1, "another's"
    assert first([(1501 - STRIKE_STEPS, absent)]) == 1, "long ago"
    link = ((SUCCESSORS[0], SUCCESSORS[1]), (SUCCESSORS[1], absent))
    assert first([(1400, SUCCESSORS[1]), (1401, absent)], successors=link) == 4, "under other keys"


def test_while_the_run_pauses_nobody_has_to_wait() -> None:
    """[B8, G2] It pauses because too few are there. Steps that do not move the model do not count against who is gone, either."""
    absent = PEERS[-1]
    often = tuple((k, absent) for k in range(9))
    assert not roster_with_one_absent(returns=often).may_return(Returned(absent, absent), 8)
    assert roster_with_one_absent(returns=often, paused=True).may_return(Returned(absent, absent), 8)
    assert roster_with_one_absent(updates=5000, paused=True).may_return(Returned(absent, absent), 8)
    roster = roster_after(roster_with_one_absent(), 9, updated=False, updates=8)
    assert roster.paused
    for step in range(10, 3 * MOST_AWAY, 100):
        roster = roster_after(roster, step, updated=False, updates=8)
    roster = roster_after(roster, 3 * MOST_AWAY, updated=True, updates=9)
    assert not roster.paused
    assert roster.may_return(Returned(absent, absent), 3 * MOST_AWAY + 1), "one is back, the others may follow"


def test_a_seat_is_one_seat_under_whatever_key() -> None:
    """[B3] The old key has given it up, and does not come back beside the new one."""
    absent, successor = PEERS[-1], SUCCESSORS[0]
    back = roster_after(roster_with_one_absent(), 8, returned=(Returned(absent, successor),))
    assert set(back.members) == {*PEERS[:-1], successor}
    assert back.away == ()
    assert back.returns == ((8, successor),)
    for key in (absent, successor, SUCCESSORS[1]):
        assert not back.may_return(Returned(absent, key), 9)
    again = roster_after(back, 10, absent=(successor,))
    assert not again.may_return(Returned(absent, absent), 12)
    assert not again.may_return(Returned(successor, absent), 12), "a key that was given up"
    assert again.may_return(Returned(successor, SUCCESSORS[1]), 12)


def _ban(peer: PeerId) -> Judgement:
    return Judgement(None, peer, ChargeKind.EQUIVOCATION, 8, None, 0, GuiltySide.ACCUSED)


def test_a_ban_of_the_old_key_bans_the_new_one() -> None:
    """[B3] Later, in the same step, and along a line of successors; the other way round is not needed."""
    absent, successor, second = PEERS[-1], SUCCESSORS[0], SUCCESSORS[1]
    back = roster_after(roster_with_one_absent(), 8, returned=(Returned(absent, successor),))
    later = roster_after(back, 9, judgements=(_ban(absent),))
    assert set(later.banned) == {absent, successor}
    assert later.members == tuple(PEERS[:-1])
    at_once = roster_after(
        roster_with_one_absent(), 8, returned=(Returned(absent, successor),), judgements=(_ban(absent),)
    )
    assert set(at_once.banned) == {absent, successor}
    assert at_once.members == tuple(PEERS[:-1])
    renamed = roster_after(roster_after(back, 9, absent=(successor,)), 10, returned=(Returned(successor, second),))
    assert set(roster_after(renamed, 11, judgements=(_ban(absent),)).banned) == {absent, successor, second}
    assert set(roster_after(renamed, 11, judgements=(_ban(second),)).banned) == {second}


def test_a_liar_banned_under_two_keys_is_one_liar() -> None:
    """[G1, B3] Else the guarantee would count one liar too few."""
    absent, successor = PEERS[-1], SUCCESSORS[0]
    roster = roster_after(
        roster_with_one_absent(), 8, returned=(Returned(absent, successor),), judgements=(_ban(absent),)
    )
    assert replace(roster, byzantine=2).liars == 1


def test_a_key_that_was_expelled_is_not_one_that_was_never_seen() -> None:
    """[B3] An expelled member does not take the seat of a friend who is absent."""
    expelled, absent = PEERS[0], PEERS[-1]
    roster = roster_after(roster_with_one_absent(), 8, expelled=(expelled,))
    assert not roster.may_return(Returned(absent, expelled), 9)
