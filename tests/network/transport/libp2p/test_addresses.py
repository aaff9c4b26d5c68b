"""Addresses as people give them, turned into those that the daemon wants."""

import pytest

from troth.crypto import Identity
from troth.errors import OperatorError
from troth.network.transport.base import ListenError, UnreachableError
from troth.network.transport.libp2p import Libp2pOptions
from troth.network.transport.libp2p_addresses import libp2p_name
from troth.network.transport.libp2p_node import (
    dial_multiaddr,
    entrances_of,
    listen_multiaddr,
    require_peer_id,
    with_real_port,
)

ALICE, MALLORY = Identity.from_secret(b"a" * 32), Identity.from_secret(b"m" * 32)
HOME = "/ip4/203.0.113.5/tcp/4001"
NAMED = f"{HOME}/p2p/{libp2p_name(ALICE.peer)}"
RELAYED = f"/ip4/203.0.113.9/tcp/4001/p2p/{libp2p_name(MALLORY.peer)}/p2p-circuit"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (HOME, HOME),
        (NAMED, HOME),
        (RELAYED, RELAYED),
        (f"{RELAYED}/p2p/{libp2p_name(ALICE.peer)}", RELAYED),
        ("203.0.113.5:4001", HOME),
        ("[2001:db8::1]:4001", "/ip6/2001:db8::1/tcp/4001"),
        ("peer.example.org:4001", "/dns/peer.example.org/tcp/4001"),
    ],
)
def test_addresses_to_dial(given: str, wanted: str) -> None:
    assert dial_multiaddr(given, ALICE.peer) == wanted


def test_founders_with_an_address_are_entrances() -> None:
    """Those that gave none, or one that cannot be dialled, are not."""
    given = {ALICE.peer: "203.0.113.5:4001", MALLORY.peer: ""}
    assert entrances_of(given) == (NAMED,)
    assert entrances_of({ALICE.peer: NAMED, MALLORY.peer: NAMED}) == (NAMED,)


def test_an_address_of_another_key_is_not_dialled() -> None:
    with pytest.raises(UnreachableError, match="the address of another key"):
        dial_multiaddr(NAMED, MALLORY.peer)


@pytest.mark.parametrize("given", ["nonsense", "/unix/run/docker.sock", "/ip4/203.0.113.5/tcp/0", "a b:1", ""])
def test_addresses_that_cannot_be_dialled(given: str) -> None:
    """Nothing is dialled because a stranger says so: no file, no other protocol."""
    with pytest.raises(UnreachableError):
        dial_multiaddr(given, ALICE.peer)


def test_addresses_to_listen_on() -> None:
    assert listen_multiaddr("0.0.0.0:4001") == "/ip4/0.0.0.0/tcp/4001"
    assert listen_multiaddr("[::]:0") == "/ip6/::/tcp/0"
    assert listen_multiaddr("/ip4/127.0.0.1/tcp/0") == "/ip4/127.0.0.1/tcp/0"
    for given in ("example.org:4001", "/ip4/127.0.0.1/udp/1/quic", RELAYED, "4001"):
        with pytest.raises(ListenError, match="is no address to listen on: write"):
            listen_multiaddr(given)


def test_a_port_that_was_found_free_is_kept() -> None:
    found = [RELAYED, "/ip4/127.0.0.1/tcp/33445"]
    assert with_real_port("/ip4/0.0.0.0/tcp/0", found) == "/ip4/0.0.0.0/tcp/33445"
    assert with_real_port("/ip4/0.0.0.0/tcp/4001", found) == "/ip4/0.0.0.0/tcp/4001"
    assert with_real_port("/ip4/0.0.0.0/tcp/0", [RELAYED]) == "/ip4/0.0.0.0/tcp/0"


def test_initial_peers_and_relays_are_named_with_their_keys() -> None:
    require_peer_id("relay", NAMED)
    for given in (HOME, "203.0.113.5:4001", f"/ip4/203.0.113.5/udp/1/p2p/{libp2p_name(ALICE.peer)}", f"{HOME}/p2p/"):
        with pytest.raises(OperatorError, match="is no address of a relay: write /ip4/203"):
            require_peer_id("relay", given)


def test_options_check_themselves() -> None:
    for wrong in ({"relays": (HOME,)}, {"initial_peers": ("127.0.0.1:1",)}, {"announce": ("me",)}):
        with pytest.raises(OperatorError, match="/ip4/203"):
            Libp2pOptions(**wrong)  # type: ignore[arg-type]
    with pytest.raises(OperatorError, match="announce says that others can dial this peer, relays that they cannot"):
        Libp2pOptions(relays=(NAMED,), announce=(HOME,))
