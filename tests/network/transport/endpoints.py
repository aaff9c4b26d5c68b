"""Transports on the loopback, and a hostile peer that speaks raw bytes inside TLS."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from troth.crypto.identity import Identity, PeerId
from troth.network.transport.base import TransportLimits
from troth.network.transport.connection import StreamConnection
from troth.network.transport.tcp import TcpTransport, client_context

MB = 1_000_000
LIMITS = TransportLimits(most_control_bytes=MB, most_bulk_bytes=64 * MB, most_queued_bytes=128 * MB)
HASTY = TransportLimits(  # for tests in which time has to pass
    most_control_bytes=MB,
    most_bulk_bytes=64 * MB,
    most_queued_bytes=128 * MB,
    handshake_s=0.5,
    idle_s=0.4,
    ping_s=0.1,
)

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result], within_s: float = 20.0) -> Result:
    """Run to the end, in time, and leave nothing behind: no task, no file descriptor."""

    async def watched() -> Result:
        async with asyncio.timeout(within_s):
            result = await main
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left behind: {left}"
        return result

    gc.collect()  # what earlier tests left is not this one's
    before = open_files()
    result = asyncio.run(watched())
    gc.collect()
    assert open_files() == before
    return result


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until it is so. The deadline is that of `run`."""
    while not condition():
        await asyncio.sleep(0)


def anyone(_: PeerId) -> bool:
    return True


@asynccontextmanager
async def transport(limits: TransportLimits = LIMITS, identity: Identity | None = None) -> AsyncIterator[TcpTransport]:
    made = TcpTransport(identity or Identity.generate(), limits)
    try:
        yield made
    finally:
        await made.close()


class Pair(NamedTuple):
    near: StreamConnection
    far: StreamConnection


@asynccontextmanager
async def pair(limits: TransportLimits = LIMITS, far_limits: TransportLimits | None = None) -> AsyncIterator[Pair]:
    """Two ends of one connection between peers that know each other; the near end dialled."""
    identity = Identity.generate()
    async with transport(limits) as dialler, transport(far_limits or limits, identity=identity) as listener:
        address = await listener.listen("127.0.0.1:0")
        made = Pair(await dialler.dial(address, identity.peer), await listener.accept())
        for end in made:
            end.recognise(known=True)
        yield made


class RawPeer(NamedTuple):
    """Somebody with a valid key and bad manners: whatever is written goes through TLS as it is."""

    peer: PeerId
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def hears(self) -> bytes:
        """Everything until the connection goes down."""
        heard = b""
        with suppress(OSError):
            while part := await self.reader.read(65536):
                heard += part
        return heard


@asynccontextmanager
async def raw_peer(address: str, source: str = "127.0.0.1") -> AsyncIterator[RawPeer]:
    identity = Identity.generate()
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(
        host,
        int(port),
        ssl=client_context(identity),
        server_hostname="",
        ssl_shutdown_timeout=0.2,
        local_addr=(source, 0),
    )
    try:
        yield RawPeer(identity.peer, reader, writer)
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
