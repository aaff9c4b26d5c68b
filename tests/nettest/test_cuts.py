"""Cut off, or killed: a minority waits, a majority goes on, and everyone is together again at the end."""

import time
from pathlib import Path

from tests.nettest.company import all_at
from tests.nettest.world import World
from troth.network.manifest.options import ManifestOptions

# 40 ms one way: a step takes about two thirds of a second on any machine, so the run lasts longer than what happens in it.
OPTIONS = ManifestOptions(steps=45, delta_s=0.5, compute_s=0.5, bulk_s=0.5)
DELAY_S = 0.04


def test_a_minority_that_is_cut_off_waits_and_comes_back(tmp_path: Path) -> None:
    """2 of 7 hear only each other for a while. They make no step of their own, and the others go on (SPEC N4)."""
    with World(tmp_path, 7, OPTIONS, delay_s=DELAY_S) as world:
        minority, majority = world.peers[:2], world.peers[2:]
        world.start()
        world.until(lambda: all_at(world.peers, 3), 60, "a beginning")
        world.cut_off({0, 1})
        cut_at = max(peer.step for peer in world.peers)
        world.until(lambda: all_at(majority, cut_at + 5), 60, "steps of the majority")
        stuck_at = [peer.step for peer in minority]
        assert max(stuck_at) <= cut_at + 1  # a step that was all but done
        for peer in minority:
            assert peer.records().items() <= majority[0].records().items()
        world.heal()
        world.until(
            lambda: all(peer.takes_part for peer in minority) and all_at(minority, cut_at + 10), 60, "their return"
        )
        world.until_all_have_ended(100)
        world.check_end()
        print(f"{world.seconds_a_step():.2f} s a step")
        assert world.seen_as("left", majority) == world.seen_as("returned", majority) == {"p0", "p1"}


def test_a_peer_that_is_killed_in_mid_step_comes_back(tmp_path: Path) -> None:
    """`kill -9` of 2 of 8, started again ten seconds later (SPEC B1 to B4)."""
    with World(tmp_path, 8, OPTIONS, delay_s=DELAY_S) as world:
        killed, rest = world.peers[:2], world.peers[2:]
        world.start()
        world.until(lambda: all_at(world.peers, 3), 60, "a beginning")
        for peer in killed:
            peer.kill()
        killed_at, restart_at = rest[0].step, time.monotonic() + 10
        world.until(lambda: time.monotonic() >= restart_at, 11, "ten seconds")
        for peer in killed:
            peer.start()
        world.until(lambda: all_at(rest, killed_at + 3), 60, "steps of the rest")
        world.until_all_have_ended(100)
        world.check_end()
        print(f"{world.seconds_a_step():.2f} s a step")
        assert world.seen_as("left", rest) == world.seen_as("returned", rest) == {"p0", "p1"}
