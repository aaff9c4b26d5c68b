"""Addresses as people give them (`host:port` or a multiaddr) turned into the multiaddrs that the daemon wants, and back."""

import ipaddress
from collections.abc import Mapping, Sequence
from contextlib import suppress

from troth.crypto.identity import PeerId
from troth.errors import OperatorError
from troth.network.transport.addresses import split_address
from troth.network.transport.base import ListenError, UnreachableError
from troth.network.transport.libp2p.bindings import Hivemind
from troth.network.transport.libp2p.control import Control
from troth.network.transport.libp2p.multiaddr import dialable, libp2p_name, listenable


def require_peer_id(kind: str, address: str) -> None:
    """Refuse an address of an initial peer or a relay that cannot be dialled or does not end in its peer id."""
    where, found, name = address.rpartition("/p2p/")
    if not found or not name or not dialable(where):
        raise OperatorError(f"'{address}' is no address of a {kind}: write /ip4/203.0.113.5/tcp/4001/p2p/12D3Koo…")


def listen_multiaddr(address: str) -> str:
    """The multiaddr to listen on. Raises ListenError."""
    if address.startswith("/"):
        if not listenable(address):
            raise ListenError(f"'{address}' is no address to listen on: write /ip4/0.0.0.0/tcp/4001 or 0.0.0.0:4001")
        return address
    try:
        host, port = split_address(address)
        version = ipaddress.ip_address(host).version
    except ValueError as error:
        raise ListenError(
            f"'{address}' is no address to listen on: write an IP address and a port, 0.0.0.0:4001"
        ) from error
    return f"/ip{version}/{host}/tcp/{port}"


def with_real_port(asked: str, published: Sequence[str]) -> str:
    """The address that was asked for, with the port that was found free where any was asked for."""
    ports = [one.rpartition("/tcp/")[2] for one in published if "/p2p-circuit" not in one]
    return asked.removesuffix("/tcp/0") + f"/tcp/{ports[0]}" if asked.endswith("/tcp/0") and ports else asked


def dial_multiaddr(address: str, peer: PeerId) -> str:
    """The multiaddr to dial, without the peer's id at its end: the daemon wants them apart. Raises UnreachableError."""
    if not address.startswith("/"):
        try:
            host, port = split_address(address)
        except ValueError as error:
            raise UnreachableError(str(error)) from error
        try:
            address = f"/ip{ipaddress.ip_address(host).version}/{host}/tcp/{port}"
        except ValueError:
            address = f"/dns/{host}/tcp/{port}"
    where, _, name = address.rpartition("/p2p/")
    if where and "/" not in name:
        if name != libp2p_name(peer):
            raise UnreachableError(f"that is the address of another key than {peer.hex()[:16]}")
        address = where
    if not dialable(address):
        raise UnreachableError(f"'{address}' is no address that can be dialled")
    return address


def entrances_of(addresses: Mapping[PeerId, str]) -> tuple[str, ...]:
    """The addresses that can be dialled, with the peer's id at their end: ways into the DHT."""
    found = []
    for peer, address in addresses.items():
        with suppress(UnreachableError):
            found.append(f"{dial_multiaddr(address, peer)}/p2p/{libp2p_name(peer)}")
    return tuple(found)


async def own_addresses(hivemind: Hivemind, control: Control) -> list[str]:
    """Every address that the daemon knows of itself, except kinds that hivemind cannot read."""
    readable = []
    for raw in await control.addresses():
        with suppress(ValueError, LookupError):
            readable.append(str(hivemind.Multiaddr(raw)))
    return readable
