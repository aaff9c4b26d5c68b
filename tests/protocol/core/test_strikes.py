"""Strikes: three within a thousand steps expel, and do not ban."""

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import assume, given

from tests.protocol.samples import CLOSE, KEYS, STEP, quiet_record, roster_with_disputes
from troth.protocol.core.records import Judgement
from troth.protocol.core.roster import MOST_STRIKES, STRIKE_STEPS, Roster
from troth.protocol.wire.messages import ChargeKind

PEERS = KEYS[:7]


@given(st.lists(st.integers(0, 2500), max_size=8, unique=True), st.integers(0, 2500))
def test_three_strikes_within_a_thousand_steps_are_too_many(earlier: list[int], now: int) -> None:
    """[N3] Two before this one and fewer than a thousand steps ago, whoever else was struck when."""
    earlier = sorted(when for when in earlier if when < now)
    assume(all(later - first >= 1000 for first, later in zip(earlier, earlier[2:], strict=False)))  # else it is gone
    roster, me, other = Roster(KEYS), KEYS[3], KEYS[4]
    for when in earlier:
        assert roster.expelled(when, [me], ()) == ()
        roster = roster.after(msgspec.structs.replace(CLOSE, step=when, struck=(me,)))
    recent = [when for when in earlier if now - when < 1000]
    assert roster.expelled(now, [other, me], ()) == ((me,) if len(recent) >= 2 else ())
    assert [when for when, _ in roster.strikes] == [when for when in earlier if when > earlier[-1] - 1000]


def test_the_thousandth_step_is_not_within_a_thousand() -> None:
    """[N3] Steps 0, 500 and 999 are; 0, 500 and 1000 are not."""
    roster = Roster(KEYS, strikes=((0, KEYS[0]), (500, KEYS[0])))
    assert roster.expelled(999, [KEYS[0]], ()) == (KEYS[0],)
    assert roster.expelled(1000, [KEYS[0]], ()) == ()


def test_old_strikes_are_forgotten_and_new_ones_remembered() -> None:
    """[N3] The table stays small: at most what a thousand steps can hold."""
    roster = Roster(KEYS, strikes=((STEP - 1000, KEYS[0]), (STEP - 999, KEYS[1])))
    after = roster.after(msgspec.structs.replace(CLOSE, struck=(KEYS[2],)))
    assert after.strikes == ((STEP - 999, KEYS[1]), (STEP, KEYS[2]))


def test_an_expelled_member_leaves_without_a_ban() -> None:
    """[N3, N1, T5] Like the absent, and unlike the banned."""
    ban = Judgement(None, KEYS[2], ChargeKind.AGGREGATE, STEP, 0, 0, 1)  # type: ignore[arg-type]
    record = msgspec.structs.replace(CLOSE, expelled=(KEYS[0],), absent=(KEYS[1],), judgements=(ban,))
    roster = Roster(KEYS).after(record)
    assert roster.members == KEYS[3:]
    assert roster.banned == (KEYS[2],)


@pytest.mark.parametrize("field", ["struck", "slowed"])
def test_three_strikes_within_a_thousand_steps_expel(field: str) -> None:
    """[F3] Whatever they were for; older ones are forgotten."""
    roster = Roster(tuple(PEERS))
    for step in range(MOST_STRIKES - 1):
        assert roster.expelled(step, [PEERS[0]], []) == ()
        roster = roster.after(quiet_record(step, PEERS, **{field: (PEERS[0],)}))
    assert roster.expelled(10, [PEERS[0]], []) == (PEERS[0],)
    assert roster.expelled(10, [PEERS[1]], []) == ()
    assert roster.expelled(STRIKE_STEPS - 1, [PEERS[0]], []) == (PEERS[0],)
    assert roster.expelled(STRIKE_STEPS, [PEERS[0]], []) == ()
    assert Roster(tuple(PEERS)).expelled(0, [PEERS[0]] * 3, []) == (PEERS[0],)


def test_a_member_with_link_disputes_with_half_of_the_members_is_expelled_and_not_banned() -> None:
    """[F3] Four of seven, whichever came first; the others stay."""
    roster = roster_with_disputes(PEERS, (0, 1), (0, 2), (0, 3))
    assert roster.expelled(5, [], []) == ()
    fourth = [(PEERS[0], PEERS[4])]
    assert roster.expelled(5, [], fourth) == (PEERS[0],)
    after = roster.after(quiet_record(5, PEERS, link_disputes=tuple(fourth), expelled=(PEERS[0],)))
    assert after.members == tuple(PEERS[1:])
    assert after.banned == ()
    assert after.away == (), "no way back but the door"
    assert (
        Roster(tuple(PEERS[:3]), link_disputes=((0, PEERS[0], PEERS[1]),)).expelled(5, [], [(PEERS[0], PEERS[2])]) == ()
    )


def test_link_disputes_are_forgotten_after_a_thousand_steps_and_with_members_that_leave() -> None:
    """[F2] Links get better; and only members count."""
    roster = Roster(tuple(PEERS)).after(quiet_record(0, PEERS, link_disputes=((PEERS[0], PEERS[1]),)))
    assert roster.disputed_links() == {PEERS[0]: {PEERS[1]}, PEERS[1]: {PEERS[0]}}
    assert roster.disputed_links(before=0) == {}
    assert roster.after(quiet_record(STRIKE_STEPS - 1, PEERS)).disputed_links() != {}
    assert roster.after(quiet_record(STRIKE_STEPS, PEERS)).disputed_links() == {}
    assert roster.after(quiet_record(1, PEERS, absent=(PEERS[1],))).disputed_links() == {}
