"""Far away, lossy, slow: bad connections on which an honest peer keeps its seat, or comes back if it loses it."""

from pathlib import Path

from tests.nettest.company import all_at
from tests.nettest.world import World
from troth.network.manifest.options import ManifestOptions


def test_far_away_with_some_loss_is_still_a_member(tmp_path: Path) -> None:
    """200 ms one way between any two, and one peer loses 5 % both ways: with Δ = 2 s nobody is left out.

    A lost frame is sent again after a round trip or two (0.4 to 1 s), a frame lost twice after 2 s; values have 2Δ and more.
    """
    options = ManifestOptions(steps=5, delta_s=2.0)
    with World(tmp_path, 5, options, delay_s=0.2) as world:
        world.lose(4, 0.05)
        world.start()
        world.until_all_have_ended(120)
        world.check_end()
        assert not world.seen_as("left")
        print(f"{world.seconds_a_step():.2f} s a step")


def test_a_peer_that_loses_a_third_may_go_and_comes_back(tmp_path: Path) -> None:
    """30 % loss both ways at one peer: the others proceed, nobody is banned, and with a better connection it is back.

    Unless it was expelled: who does not reach half of the others, or slows them three times, needs the door (SPEC F3).
    """
    options = ManifestOptions(steps=100_000, schedule="constant", delta_s=0.5, compute_s=0.5, bulk_s=0.5)
    with World(tmp_path, 5, options, delay_s=0.02) as world:
        bad, others = world.peers[4], world.peers[:4]
        world.start()
        world.until(lambda: all_at(world.peers, 3), 60, "a beginning")
        world.lose(4, 0.3)
        before = others[0].step
        world.until(lambda: all_at(others, before + 15), 120, "steps of the others", wrong=[bad])
        world.lose(4, 0.0)
        healed, expelled = others[0].step, world.seen_as("expelled", others)
        if not expelled:
            world.until(lambda: bad.takes_part and bad.step > healed + 5, 60, "its return")
        world.check_agreement()
        left, returned = world.seen_as("left"), world.seen_as("returned")
        print(f"expelled: {expelled}, left: {left}, returned: {returned}, {world.seconds_a_step():.2f} s a step")


def test_a_megabit_is_enough_for_a_small_model(tmp_path: Path) -> None:
    options = ManifestOptions(steps=20, delta_s=1.0, compute_s=1.0)
    with World(tmp_path, 5, options) as world:
        world.limit(2, 1_000_000)
        world.start()
        world.until_all_have_ended(120)
        world.check_end()
        assert not world.seen_as("left")
        print(f"{world.seconds_a_step():.2f} s a step")
