"""Promises of one announcement among liars and power cuts that a seed draws (SPEC Q1–Q6, Q9)."""

from random import Random
from typing import Any, cast

import pytest

from tests.protocol.broadcast.announcement import link_dispute_promises as disputes
from tests.protocol.broadcast.announcement.link_dispute_world import LinkDisputeWorld
from tests.protocol.broadcast.announcement.promises import broken
from tests.protocol.broadcast.announcement.world import AnnouncementWorld
from tests.seeds import drawn
from troth.protocol.broadcast.announcement import Announcement


@pytest.mark.long
@pytest.mark.parametrize("hundred", drawn(10, many=30))
def test_promises_hold_whatever_liars_do(hundred: int) -> None:
    """[Q1–Q6] Agreement, validity, termination, proof of lies, ends within Δ of each other, bounded output."""
    runs = {seed: broken(AnnouncementWorld(seed).run()) for seed in range(100 * hundred, 100 * hundred + 100)}
    assert {seed: why for seed, why in runs.items() if why is not None} == {}


def test_without_liars_no_rounds_begin_and_two_delays_are_enough() -> None:
    """[Q2, Q3] Values, then views: whatever the delays below Δ, and however far starts lie apart."""
    for seed in range(200):
        world = AnnouncementWorld(seed, liars=0).run()
        assert broken(world) is None, seed
        last = max(member.says_at for member in world.honest)
        decided = [cast(float, member.decided_at) for member in world.honest]
        assert max(decided) <= last + 2 * world.longest + 1e-6
        assert all(len(member.sent) == 3 for member in world.honest)  # value, view, certificate


def test_equal_seeds_give_equal_runs() -> None:
    """[Q6] Everything follows from the seed, or a failure could not be looked at again."""
    for seed in range(20):
        one, other = AnnouncementWorld(seed).run(), AnnouncementWorld(seed).run()
        assert [member.sent for member in one.honest] == [member.sent for member in other.honest]


@pytest.mark.long
@pytest.mark.parametrize("hundred", drawn(8, many=20))
def test_promises_hold_whatever_members_break_off(hundred: int) -> None:
    """[Q9] Power cuts that all see, or some; in the middle of sending; liars that break off towards some, or claim that others
    have; and members that are back."""
    runs = {
        seed: broken(AnnouncementWorld(seed, departures=True).run())
        for seed in range(100 * hundred, 100 * hundred + 100)
    }
    assert {seed: why for seed, why in runs.items() if why is not None} == {}


def _mostly_liars(seed: int, kind: type[Announcement] = Announcement) -> AnnouncementWorld:
    """Any number of liars, as when honest members are out of the step."""
    members = Random(seed).randint(3, 9)
    return AnnouncementWorld(seed, kind, members=members, liars=Random(-seed).randint(1, members - 1), departures=True)


@pytest.mark.long
@pytest.mark.parametrize("hundred", drawn(4, many=10))
def test_promises_hold_though_most_who_take_part_lie(hundred: int) -> None:
    """[Q6] The rounds are for so many liars as there may be, not for a share of those who take part."""
    runs = {seed: broken(_mostly_liars(seed).run()) for seed in range(100 * hundred, 100 * hundred + 100)}
    assert {seed: why for seed, why in runs.items() if why is not None} == {}


@pytest.mark.long
@pytest.mark.parametrize("hundred", drawn(4, many=10))
def test_a_liar_that_breaks_off_towards_some_pays_as_if_it_had_kept_its_value_from_them(hundred: int) -> None:
    """[F1, F3, Q9] No honest member is struck or gets a link dispute with another; all rounds cost a liar one or the other."""
    for seed in range(100 * hundred, 100 * hundred + 100):
        world = LinkDisputeWorld(seed, departures=True).run()
        checks = (disputes.broken, disputes.served, disputes.standing, disputes.costs)
        assert [why for check in checks if (why := check(world)) is not None] == [], seed


class _RoundsForAMinority(Announcement):
    """As many rounds as are enough against a minority of those who take part."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._rounds = min(self._rounds, (len(self._members) + 1) // 2)


def test_rounds_for_a_minority_are_too_few_where_most_lie() -> None:
    """[Q6] The same liars, with the rounds that a minority of them would need."""
    assert any(
        (broken(_mostly_liars(seed, _RoundsForAMinority).run()) or "").startswith("agreement") for seed in range(800)
    )
