"""Every kind of transport, by name. A new one is a file of its own and a row here."""

from collections.abc import Callable, Mapping

from troth.crypto.identity import PeerId
from troth.network.transport.base import TransportOptions
from troth.network.transport.libp2p import Libp2pOptions
from troth.network.transport.libp2p_node import entrances_of
from troth.network.transport.tcp import TcpOptions

DEFAULT_TRANSPORT = "tcp"

TRANSPORTS: Mapping[str, Callable[..., TransportOptions]] = {
    "tcp": TcpOptions,
    "libp2p": Libp2pOptions,
}


def libp2p_address(address: str, peer: PeerId) -> str | None:
    """The address of a relay as libp2p wants it, with the relay's key in it; None if nobody can dial there."""
    return next(iter(entrances_of({peer: address})), None)
