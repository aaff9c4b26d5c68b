"""A peer behind a router at home: it can call, and cannot be called. Also a stranger, that the manifest does not name."""

from pathlib import Path

from tests.nettest.world import PORT, World
from troth.network.manifest.options import ManifestOptions


def test_a_peer_that_cannot_be_dialled_dials_the_others(tmp_path: Path) -> None:
    with World(tmp_path, 5, ManifestOptions(steps=20, delta_s=1.0, compute_s=1.0), behind_nat={3}) as world:
        world.start()
        world.until(lambda: world.peers[3].step > 0, 60, "a beginning")
        assert world.reaches(3, f"10.77.0.1:{PORT}")
        for address in ("10.77.0.4", "192.168.7.2"):  # the router, and the peer itself
            assert not world.reaches(0, f"{address}:{PORT}")
        world.until_all_have_ended(100)
        world.check_end()
        assert not world.seen_as("left")


def test_a_stranger_that_cannot_be_dialled_becomes_a_member(tmp_path: Path) -> None:
    """It has the manifest, gives no address, and dials the founders."""
    options = ManifestOptions(steps=60, probation=16)
    with World(tmp_path, 5, options, behind_nat={4}, strangers=1, delay_s=0.1) as world:
        stranger, founder = world.peers[4], world.peers[0]
        world.start()
        world.until(lambda: stranger.takes_part or founder.code == 0, 300, "a member, or the end")
        assert stranger.takes_part, world.last_words()
        for address in ("10.77.0.5", "192.168.7.2"):
            assert not world.reaches(0, f"{address}:{PORT}")
        world.until_all_have_ended(300)
        world.check_end()
        assert founder.events()[-1]["members"] == 5
        assert "can reach this peer" not in stranger.log, "it gave no address, and nobody was asked"


def test_a_stranger_with_an_address_that_nobody_reaches_is_told_before_it_fetches_anything(tmp_path: Path) -> None:
    options = ManifestOptions(steps=10_000, probation=16)
    with World(tmp_path, 4, options, behind_nat={3}, strangers=1) as world:
        stranger = world.peers[3]
        stranger.options = ("--listen", f"192.168.7.2:{PORT}")
        world.start()
        world.until(lambda: stranger.code is not None, 120, "an error", wrong=[stranger])
        assert stranger.code == 2, stranger.log
        assert "cannot reach this peer at 192.168.7.2:7000" in stranger.log
        assert "following the run" not in stranger.log
