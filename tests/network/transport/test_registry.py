"""Every kind of transport can be made from its row in the table, and says how it is used."""

from importlib.util import find_spec

import pytest

from tests.network.transport.endpoints import LIMITS, anyone
from troth.crypto import Digest, Identity
from troth.errors import OperatorError
from troth.network.transport.base import LocalPeer, Transport
from troth.network.transport.libp2p import Libp2pOptions
from troth.network.transport.registry import DEFAULT_TRANSPORT, TRANSPORTS, libp2p_address

LOCAL = LocalPeer(Identity.from_secret(b"l" * 32), LIMITS, Digest(bytes(32)), anyone)


@pytest.mark.parametrize("name", TRANSPORTS)
def test_a_row_makes_a_transport_from_its_defaults(name: str) -> None:
    options = TRANSPORTS[name]()
    assert options.listen_address(7001) == "0.0.0.0:7001"
    if name == "libp2p" and find_spec("hivemind") is None:
        with pytest.raises(OperatorError, match=r"pip install .*\[libp2p\]"):
            options.make(LOCAL)
        return
    made: Transport = options.make(LOCAL)
    assert {"listen", "dial", "accept", "close"} <= set(dir(made))


def test_a_member_without_an_address_is_looked_up_where_that_is_possible() -> None:
    addresses = {name: make().lookup_address for name, make in TRANSPORTS.items()}
    assert addresses == {"tcp": "", "libp2p": "dht:"}


def test_where_to_listen_if_the_manifest_gives_no_port() -> None:
    assert {name: make().listen_address(None) for name, make in TRANSPORTS.items()} == {
        "tcp": "0.0.0.0:0",
        "libp2p": "",
    }
    assert DEFAULT_TRANSPORT == "tcp"


def test_the_address_of_a_relay_names_its_key() -> None:
    me = LOCAL.identity.peer
    address = libp2p_address("203.0.113.5:4001", me)
    assert address is not None
    assert address.startswith("/ip4/203.0.113.5/tcp/4001/p2p/12D3Koo")
    assert Libp2pOptions(relays=(address,)).lookup_address == "dht:"
    assert libp2p_address("", me) is None
