"""One peer in a process of its own, to be put into a network namespace.

    python -m tests.nettest.libp2p_peer ROLE SECRET [RELAY PEER]

It tells what happened in lines of JSON, and ends when its standard input does.
"""

import asyncio
import json
import os
import sys
import time

from tests.nettest.libp2p_loopback import LIMITS, MB, RUN, node_of
from troth.crypto.identity import Identity, PeerId
from troth.network.transport.base import Lane, LocalPeer
from troth.network.transport.connection import StreamConnection
from troth.network.transport.libp2p import Libp2pOptions, Libp2pTransport

_ROUND_TRIPS = 50
_BIG = 20 * MB


def tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def echo(connection: StreamConnection) -> None:
    connection.recognise(known=True)
    while (heard := await connection.receive()) is not None:
        connection.send(*heard)


async def serve(transport: Libp2pTransport) -> None:
    async with asyncio.TaskGroup() as group:
        while True:
            group.create_task(echo(await transport.accept()))


async def talk(transport: Libp2pTransport, peer: PeerId) -> None:
    started = time.monotonic()
    connection = await transport.dial("dht:", peer)
    connection.recognise(known=True)
    found_s = time.monotonic() - started
    big = os.urandom(_BIG)
    connection.send(Lane.BULK, big)
    assert await connection.receive() == (Lane.BULK, big)
    bulk_s = time.monotonic() - started - found_s
    times = []
    for _ in range(_ROUND_TRIPS):
        began = time.monotonic()
        connection.send(Lane.CONTROL, bytes(1000))
        assert await connection.receive() == (Lane.CONTROL, bytes(1000))
        times.append(time.monotonic() - began)
    node = node_of(transport)
    over = [str(node.setup.hivemind.Multiaddr(at)) for _, at in await node.control.connections()]
    tell(
        peer=connection.peer.hex(),
        found_s=round(found_s, 3),
        echoed_mb_s=round(_BIG / MB / bulk_s, 1),
        round_trip_us=round(1e6 * sorted(times)[len(times) // 2]),
        lines=over,
    )


async def main(role: str, secret: str, relay: str = "", peer: str = "") -> None:
    transport = Libp2pTransport(
        LocalPeer(Identity.from_secret(bytes.fromhex(secret)), LIMITS, RUN, lambda _: True),
        Libp2pOptions(relays=(relay,) if role != "relay" else (), serves_relay=role == "relay"),
    )
    try:
        tell(address=await transport.listen(relay if role == "relay" else "0.0.0.0:0"))
        job = asyncio.create_task(talk(transport, PeerId(bytes.fromhex(peer))) if role == "dial" else serve(transport))
        ending = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        done, _ = await asyncio.wait({job, ending}, return_when=asyncio.FIRST_COMPLETED)
        if job in done:
            await job
        job.cancel()
    finally:
        await transport.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
