"""libp2p transports on the loopback, for tests."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from troth.crypto import Digest
from troth.crypto.identity import Identity, PeerId
from troth.network.transport.base import LocalPeer, TransportLimits
from troth.network.transport.connection import StreamConnection
from troth.network.transport.libp2p import Libp2pOptions, Libp2pTransport
from troth.network.transport.libp2p_node import Libp2pNode

MB = 1_000_000
RUN = Digest(b"r" * 32)
LIMITS = TransportLimits(most_control_bytes=MB, most_bulk_bytes=64 * MB, most_queued_bytes=128 * MB)


@asynccontextmanager
async def peer(
    identity: Identity | None = None,
    limits: TransportLimits = LIMITS,
    *,
    initial_peers: Sequence[str] = (),
    relays: Sequence[str] = (),
    serves_relay: bool = False,
) -> AsyncIterator[Libp2pTransport]:
    made = Libp2pTransport(
        LocalPeer(identity or Identity.generate(), limits, RUN, lambda _: True),
        Libp2pOptions(tuple(initial_peers), tuple(relays), serves_relay=serves_relay),
    )
    try:
        yield made
    finally:
        await made.close()


async def meet(
    dialler: Libp2pTransport, listener: Libp2pTransport, address: str, who: PeerId
) -> tuple[StreamConnection, StreamConnection]:
    """Both ends of a new connection between peers that know each other."""
    near, far = await dialler.dial(address, who), await listener.accept()
    for end in (near, far):
        end.recognise(known=True)
    return near, far


def node_of(transport: Libp2pTransport) -> Libp2pNode:
    """The daemon and the DHT node inside: only tests look there, to break them or to make them lie."""
    assert transport._running is not None
    return transport._running
