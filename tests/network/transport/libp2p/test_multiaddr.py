"""Names and addresses of libp2p, as far as Troth uses them."""

import pytest

from troth.crypto import Identity
from troth.network.transport.libp2p_addresses import (
    dialable,
    encode_multiaddr,
    id_of_name,
    libp2p_id,
    libp2p_name,
    listenable,
    peer_of_libp2p,
)
from troth.network.transport.libp2p_daemon import key_protobuf

NAME = "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq"
MALLORY = Identity.from_secret(b"m" * 32)
HOME = "/ip4/203.0.113.5/tcp/4001"
RELAYED = f"/ip4/203.0.113.9/tcp/4001/p2p/{libp2p_name(MALLORY.peer)}/p2p-circuit"


def test_a_libp2p_name_is_the_key() -> None:
    """The Ed25519 key of libp2p's own specification: https://github.com/libp2p/specs, peer-ids.md, test vectors."""
    secret = "7e0830617c4a7de83925dfb2694556b12936c477a0e1feb2e148ec9da60fee7d"
    public = "1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e"
    identity = Identity.from_secret(bytes.fromhex(secret))
    assert key_protobuf(identity).hex() == "08011240" + secret + public
    assert libp2p_id(identity.peer).hex() == "0024" + "08011220" + public
    assert peer_of_libp2p(libp2p_id(identity.peer)) == identity.peer
    assert libp2p_name(identity.peer) == NAME
    assert id_of_name(NAME) == libp2p_id(identity.peer)


@pytest.mark.parametrize("other", [b"", b"\x12\x20" + bytes(32), bytes.fromhex("002408021220") + bytes(32), bytes(38)])
def test_other_kinds_of_keys_are_nobody(other: bytes) -> None:
    assert peer_of_libp2p(other) is None


@pytest.mark.parametrize(
    "address", [HOME, RELAYED, "/ip6/2001:db8::1/tcp/1", "/dns4/relay.example.org/tcp/65535", "/dns/a/tcp/80"]
)
def test_addresses_that_are_dialled(address: str) -> None:
    assert dialable(address)


def test_addresses_are_written_as_the_daemon_reads_them() -> None:
    assert encode_multiaddr("/ip4/127.0.0.1/tcp/4001").hex() == "047f000001060fa1"
    assert encode_multiaddr("/ip6/::1/tcp/1").hex() == "29" + "00" * 15 + "01" + "060001"
    assert encode_multiaddr("/dns4/a.b/tcp/1").hex() == "3603612e62060001"
    relay = libp2p_id(MALLORY.peer).hex()
    assert encode_multiaddr(RELAYED).hex() == "04cb007109060fa1" + "a50326" + relay + "a202"


def test_where_one_can_listen() -> None:
    assert listenable("/ip4/0.0.0.0/tcp/0")
    assert not listenable("/dns4/a.b/tcp/1")
    assert not listenable(RELAYED)
    assert not dialable("/ip4/0.0.0.0/tcp/0")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/unix/run/docker.sock",
        "/ip4/203.0.113.5/udp/4001/quic-v1",
        "/ip4/203.0.113.5/tcp/4001/ws",
        "/ip4/203.0.113.5/tcp/0",
        "/ip4/203.0.113.5/tcp/65536",
        "/ip4/203.0.113.500/tcp/1",
        "/ip6/203.0.113.5/tcp/1",
        "/ip4/203.0.113.5/tcp/4001\n",
        HOME + RELAYED,
        RELAYED + "/p2p/12D3Koo" + "1" * 200,
        "/dns4/" + "a" * 200 + "/tcp/1",
    ],
)
def test_addresses_that_are_not(address: str) -> None:
    assert not dialable(address)
