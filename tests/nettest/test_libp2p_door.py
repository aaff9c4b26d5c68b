"""Strangers behind NATs: they have the manifest and a key, find the members in the DHT, and become members by their work.

home a: p1, frank ── router a ── hub: p0 ── router b ── home b: p2, eve
"""

from pathlib import Path

from tests.nettest.company import Company
from tests.nettest.peer import Peer
from tests.nettest.two_homes import reaches, two_homes
from troth.crypto import Identity
from troth.network.manifest.options import ManifestOptions

_OPTIONS = ManifestOptions(steps=80, probation=16)
_DELAY_S = 0.05
_JOIN_S, _END_S = 300.0, 300.0


def test_strangers_behind_nats_find_the_run_in_the_dht_and_become_members(tmp_path: Path) -> None:
    """Eve is reached through a relay, and frank cannot be reached: they meet, as members keep eve's record in the DHT."""
    with two_homes(_DELAY_S) as world, Company(tmp_path, [f"{world.public}:4001", "", ""], _OPTIONS) as company:
        (a, b), hub = world.homes, company.peers[0]
        for elsewhere in ("11.77.2.2", "192.168.2.1", "192.168.2.2"):
            assert not reaches(a, elsewhere), "the homes must not see each other, or this proves nothing"
        for peer, place in zip(company.peers, (world.hub, a, b), strict=True):
            peer.inside = ("ip", "netns", "exec", place)
            peer.options = ("--libp2p", *(("--serve-relay",) if place == world.hub else ("--relay", "p0")))
        strangers = [
            Peer("eve", tmp_path, ("ip", "netns", "exec", b), options=("--libp2p", "--relay", "p0")),
            Peer("frank", tmp_path, ("ip", "netns", "exec", a), options=("--libp2p",)),
        ]
        for stranger in strangers:
            Identity.generate().save(tmp_path / f"{stranger.name}.key")
        company.peers += strangers
        company.start()
        for stranger in strangers:
            company.until(lambda who=stranger: who.takes_part or hub.code == 0, _JOIN_S, "a member, or the end")  # type: ignore[misc]
            assert stranger.takes_part, company.last_words()
        company.until_all_have_ended(_END_S)
        company.check_end()
        assert hub.events()[-1]["members"] == 5
