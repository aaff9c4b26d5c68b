"""Every kind of transport, by name. A new one is a file of its own and a row here; a peer loads the one that it uses."""

from troth.crypto.identity import PeerId
from troth.network.transport.base import TransportOptions
from troth.specs import LazyTable

DEFAULT_TRANSPORT = "tcp"

TRANSPORTS = LazyTable[type[TransportOptions]](
    {
        "tcp": "troth.network.transport.tcp:TcpOptions",
        "libp2p": "troth.network.transport.libp2p:Libp2pOptions",
    }
)


def libp2p_address(address: str, peer: PeerId) -> str | None:
    """The address of a relay as libp2p wants it, with the relay's key in it; None if nobody can dial there."""
    from troth.network.transport.libp2p_node import entrances_of

    return next(iter(entrances_of({peer: address})), None)
