"""Blame without proof: members that are struck, and pairs that get a link dispute (SPEC F1–F3)."""

from collections.abc import Collection, Mapping
from random import Random

from tests.protocol.samples import announced, roster_with_disputes
from troth.crypto import Identity, derive
from troth.protocol.core.roster import Roster
from troth.protocol.step.conclude import LinkDisputes
from troth.protocol.wire.messages import Accuse, Announced

PEERS = sorted(Identity.from_secret(derive(0, "quarrel", k)).peer for k in range(7))
BYZANTINE = 3  # of these seven


def _blame_for(
    unheard: Mapping[int, Collection[int]] | None = None,
    incomplete: Mapping[int, Collection[int]] | None = None,
    *,
    roster: Roster | None = None,
    step: int = 5,
    out: Collection[int] = (),
) -> tuple[set[int], set[tuple[int, int]]]:
    """Members that are struck and pairs with a new link dispute, by number, if these say so in Accuse; all others say nothing."""
    roster = roster or Roster(tuple(PEERS), byzantine=BYZANTINE)

    def said(number: int) -> Announced:
        names, doubts = ((given or {}).get(number, ()) for given in (unheard, incomplete))
        accuse = Accuse((), bytes(32), tuple(PEERS[k] for k in names), tuple(PEERS[k] for k in doubts))
        return announced(PEERS[number], accuse)

    present = [k for k in range(7) if k not in out and PEERS[k] in roster.members]
    link_disputes = LinkDisputes(roster, step)
    link_disputes.hear({PEERS[k]: said(k) for k in present}, {PEERS[k] for k in present})
    numbers = {key: number for number, key in enumerate(PEERS)}
    return {numbers[p] for p in link_disputes.slowed}, {(numbers[a], numbers[b]) for a, b in link_disputes.new}


def _doubted_by_all(number: int, but: Collection[int] = ()) -> dict[int, list[int]]:
    return {k: [number] for k in range(7) if k != number and k not in but}


def test_one_not_hearing_another_is_a_link_dispute_whichever_says_so() -> None:
    """[F1] Nobody can tell which of the two lies, so nobody is struck; and a dispute is one, from both sides."""
    assert _blame_for({3: [1]}) == (set(), {(1, 3)})
    assert _blame_for({3: [1], 1: [3]}) == (set(), {(1, 3)})
    assert _blame_for({3: [3]}) == (set(), set())


def test_a_link_dispute_is_new_once() -> None:
    """[F2] Others relay over known ones, and these are not written down again."""
    assert _blame_for({3: [1, 2]}, roster=roster_with_disputes(PEERS, (1, 3))) == (set(), {(2, 3)})


def test_a_member_that_more_than_half_did_not_hear_is_struck_and_gets_no_link_dispute() -> None:
    """[F3] Four of seven: at least one honest member among them."""
    assert _blame_for({k: [1] for k in (2, 3, 4)}) == (set(), {(1, 2), (1, 3), (1, 4)})
    assert _blame_for({k: [1] for k in (2, 3, 4, 5)}) == ({1}, set())


def test_a_member_that_did_not_hear_half_of_the_members_is_struck() -> None:
    """[F3] It is its own link, or it lies: no honest member is kept waiting by so many."""
    assert _blame_for({1: [2, 3, 4]}) == (set(), {(1, 2), (1, 3), (1, 4)})
    assert _blame_for({1: [2, 3, 4, 5]}) == ({1}, set())


def test_a_member_that_says_that_something_is_missing_must_name_somebody() -> None:
    """[F3] More than half saw the incomplete view; in the end everyone was heard."""
    assert _blame_for({}, _doubted_by_all(1)) == ({1}, set())
    assert _blame_for({1: [2]}, _doubted_by_all(1)) == (set(), {(1, 2)})
    assert _blame_for({}, {k: [1] for k in (2, 3, 4)})[0] == set(), "three of seven may all be liars"


def test_a_member_served_by_others_cannot_name_the_same_one_again() -> None:
    """[F3] Since others relay what that one says, nothing can be missing; unless most did not hear it either."""
    assert _blame_for({1: [2]}, _doubted_by_all(1), roster=roster_with_disputes(PEERS, (1, 2))) == ({1}, set())
    everyone = {k: [2] for k in range(7) if k != 2}
    assert _blame_for(everyone, _doubted_by_all(1), roster=roster_with_disputes(PEERS, (1, 2)))[0] == {2}
    assert _blame_for({1: [2, 3]}, _doubted_by_all(1), roster=roster_with_disputes(PEERS, (1, 2))) == (set(), {(1, 3)})


def test_nobody_is_struck_for_what_others_did_not_serve_yet() -> None:
    """[F2, F3] Accuse of step 5 is about announcements since Accuse of step 4: nobody relayed over its disputes then."""
    for since, struck in ((4, set()), (3, {1})):
        assert (
            _blame_for({1: [2]}, _doubted_by_all(1), roster=roster_with_disputes(PEERS, (1, 2), since=since))[0]
            == struck
        )


def test_a_member_that_left_in_the_step_before_can_still_be_named() -> None:
    """[F1] It kept its value back in the last Accuse, and was then banned: members that missed it are not to blame."""
    members = tuple(key for key in PEERS if key != PEERS[2])
    gone, stranger = Roster(members, left=(PEERS[2],)), Roster(members)
    assert _blame_for({1: [2]}, _doubted_by_all(1, but=[2]), roster=gone) == (set(), set())
    assert _blame_for({1: [2]}, _doubted_by_all(1, but=[2]), roster=stranger) == ({1}, set())


def test_whatever_a_minority_says_no_honest_member_is_struck_or_expelled_for_it() -> None:
    """[F3] Three of seven liars name whom they like; four honest ones, who heard everyone, say nothing."""
    for seed in range(300):
        draw = Random(seed)
        liars = draw.sample(range(7), 3)
        known = [(a, b) for a in range(7) for b in range(a + 1, 7) if {a, b} & set(liars) and draw.random() < 0.3]
        known = [(a, b) for a, b in known if sum(a in p for p in known) < 4 and sum(b in p for p in known) < 4]
        roster = roster_with_disputes(PEERS, *known, since=draw.choice([0, 4]))
        unheard = {k: draw.sample(range(7), draw.randint(0, 7)) for k in liars}
        incomplete = {k: draw.sample(range(7), draw.randint(0, 7)) for k in liars}
        struck, disputed_links = _blame_for(
            unheard, incomplete, roster=roster, out=draw.sample(liars, draw.randint(0, 1))
        )
        assert struck <= set(liars)
        assert all({a, b} & set(liars) for a, b in disputed_links)
        pairs = [(PEERS[a], PEERS[b]) for a, b in disputed_links]
        expelled = roster.expelled(5, [PEERS[k] for k in struck], pairs)
        assert {PEERS.index(key) for key in expelled} <= set(liars)


def test_a_member_with_more_link_disputes_than_there_are_liars_is_struck() -> None:
    """[F3] Honest members have disputes with liars only. Members with most come first; for the others those do not count."""
    few = Roster(tuple(PEERS), byzantine=1)
    assert _blame_for({0: [1, 2]}, roster=few) == (set(), {(0, 1), (0, 2)}), "links may be bad without anybody lying"
    assert _blame_for({0: [1, 2, 3]}, roster=few) == ({0}, {(0, 1), (0, 2), (0, 3)})
    known = Roster(tuple(PEERS), byzantine=1, link_disputes=tuple((0, PEERS[0], PEERS[k]) for k in (1, 2, 3)))
    assert _blame_for({}, roster=known) == (set(), set()), "once for each new dispute"
    assert _blame_for({3: [0], 4: [0]}, roster=known)[0] == {0}
    assert _blame_for({3: [4]}, roster=known)[0] == set(), "a member without a new dispute has paid"


def test_a_few_bad_links_are_not_held_against_everyone_at_the_other_end() -> None:
    """[F3] Where nobody lies, two members whom the others do not reach: these pay, not all others."""
    safe = Roster(tuple(PEERS), byzantine=0)
    assert _blame_for({k: [0, 1] for k in (2, 3, 4)}, roster=safe)[0] == {0, 1}


def test_in_a_small_roster_liars_cannot_cut_an_honest_member_off() -> None:
    """[F3] Three of seven may lie; four are left, one of them honest: it has disputes with three of four, and stays."""
    small = Roster(tuple(PEERS[:4]), byzantine=3, admitted=7)
    pairs = [(PEERS[0], PEERS[k]) for k in (1, 2, 3)]
    assert small.expelled(5, [], pairs) == ()
    assert Roster(tuple(PEERS[:4]), byzantine=2).expelled(5, [], pairs) == (PEERS[0],)
    assert _blame_for({0: [1, 2, 3]}, roster=small)[0] == set()


def test_naming_oneself_is_no_excuse() -> None:
    """[F3] Nobody has a link dispute with itself, so it would cost nothing."""
    assert _blame_for({1: [1]}, _doubted_by_all(1)) == ({1}, set())


def test_a_wrong_view_of_somebody_is_a_link_dispute() -> None:
    """[F1, F3] Two liars, each of whom signs for half of the others that something is missing: no certificate, and no majority.

    An honest member signs one view: all others doubt it, or none.
    """
    assert _blame_for({}, {2: [0], 3: [0], 4: [1], 5: [1], 6: [1]})[1] == {(0, 2), (0, 3), (1, 4), (1, 5), (1, 6)}


def test_an_honest_member_is_not_struck_for_a_liar_that_let_some_have_its_value_and_left() -> None:
    """[F3] 0 has disputes with 2, 3 and 4, and sends its value to nobody; its friend 1 relays it to 3 and 4.

    So 2, 5 and 6 miss it. That is no majority; but with those who dispute the link anyway, nearly everyone is against it.
    """
    roster = roster_with_disputes(PEERS, (0, 2), (0, 3), (0, 4))
    unheard = {k: [0] for k in (2, 5, 6)}
    incomplete = {k: [other for other in (2, 5, 6) if other != k] for k in range(1, 7)}
    for out in ((), (0,)):
        struck, _ = _blame_for(unheard, incomplete, roster=roster, out=out)
        assert 2 not in struck
