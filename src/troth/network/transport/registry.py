"""Every kind of transport, by name. A new one is a file of its own and a row here."""

from collections.abc import Callable, Mapping

from troth.network.transport.base import TransportOptions
from troth.network.transport.libp2p.transport import Libp2pOptions
from troth.network.transport.tcp import TcpOptions

DEFAULT_TRANSPORT = "tcp"

TRANSPORTS: Mapping[str, Callable[..., TransportOptions]] = {
    "tcp": TcpOptions,
    "libp2p": Libp2pOptions,
}
