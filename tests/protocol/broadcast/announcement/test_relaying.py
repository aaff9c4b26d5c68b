"""One announcement among members with link disputes: others relay, and blame is just (SPEC F2, F3)."""

from functools import cache

import pytest

from tests.protocol.broadcast.announcement.link_dispute_promises import broken, costs, served, standing
from tests.protocol.broadcast.announcement.link_dispute_world import LinkDisputeWorld
from troth.crypto import PeerId
from troth.protocol.broadcast.announcement import Announcement
from troth.protocol.wire.frames import Agreement as Frame
from troth.protocol.wire.frames import Relayed


@cache
def verdict(seed: int) -> tuple[str | None, str | None, str | None]:
    """Of one world: promises of announcements, of members who are reached and not struck, and of what rounds cost."""
    world = LinkDisputeWorld(seed).run()
    return broken(world), served(world) or standing(world), costs(world)


@pytest.mark.long
def test_promises_of_announcements_hold_among_members_with_link_disputes() -> None:
    """[F2, Q1–Q6] Agreement, validity, termination, ends within Δ: relaying takes nothing from them."""
    assert {seed: why for seed in range(400) if (why := verdict(seed)[0]) is not None} == {}


@pytest.mark.long
def test_honest_members_whose_link_is_cut_never_cost_a_slow_path() -> None:
    """[F2] Frames of one reach the other through any third one, in time: no rounds, everyone is heard."""
    for seed in range(150):
        world = LinkDisputeWorld(seed, liars=0).run()
        assert broken(world) is None, seed
        assert all(not member.core.blame.unheard for member in world.honest)


class _Deaf(Announcement):
    """Relayed frames are not accepted."""

    def hear(self, sender: PeerId, frame: Frame, now: float, via: PeerId | None = None) -> None:
        if not isinstance(frame, Relayed):
            super().hear(sender, frame, now, via)


def test_without_relaying_both_promises_are_broken() -> None:
    """[F2] The adversary is strong enough to show it."""
    assert any(broken(LinkDisputeWorld(seed, _Deaf, liars=0).run()) == "quiet: a chain" for seed in range(10))
    assert any(served(LinkDisputeWorld(seed, _Deaf).run()) is not None for seed in range(30))


def test_whatever_liars_do_in_an_announcement_no_honest_member_is_struck_for_it() -> None:
    """[F2, F3] A value that one has in time all have; and the Accuse afterwards strikes liars only."""
    assert {seed: why for seed in range(400) if (why := verdict(seed)[1]) is not None} == {}


def test_whatever_liars_do_in_an_announcement_all_rounds_cost_them_something() -> None:
    """[F3] A strike or a new link dispute, whomever they name."""
    assert {seed: why for seed in range(400) if (why := verdict(seed)[2]) is not None} == {}
