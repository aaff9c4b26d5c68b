"""A peer behind a router at home: it can call, and cannot be called."""

from pathlib import Path

from tests.nettest.world import PORT, World
from troth.network.manifest.builder import ManifestOptions


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
