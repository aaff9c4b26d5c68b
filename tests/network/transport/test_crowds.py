"""Strangers that are gone leave nothing behind that only the garbage collector would find."""

import asyncio
import gc
import os
import weakref
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.network.transport.endpoints import LIMITS, raw_peer, run, transport, until
from troth.crypto.identity import Identity, PeerId
from troth.network.transport.base import TransportLimits, UnreachableError
from troth.network.transport.connection import StreamConnection, Vetting
from troth.network.transport.pool import _MOST_LINGERING
from troth.network.transport.tcp import TcpTransport


class Watched(TcpTransport):
    """Remembers its connections without keeping them."""

    def __init__(self, identity: Identity, limits: TransportLimits) -> None:
        super().__init__(identity, limits)
        self.all: weakref.WeakSet[StreamConnection] = weakref.WeakSet()
        made = self._pool.new_connection

        def remembered(vet: Vetting, *, dialled: bool, source: str) -> StreamConnection:
            connection = made(vet, dialled=dialled, source=source)
            self.all.add(connection)
            return connection

        self._pool.new_connection = remembered  # type: ignore[method-assign]


@pytest.mark.long
@pytest.mark.parametrize("said", [b"", b"\x00" * 500], ids=["silence", "garbage"])
def test_failed_handshakes_leave_nothing_behind(said: bytes) -> None:
    """asyncio's error for a failed handshake is part of a cycle that holds all buffers of the connection."""

    async def main() -> None:
        listener = Watched(Identity.generate(), replace(LIMITS, handshake_s=0.2))
        host, _, port = (await listener.listen("127.0.0.1:0")).rpartition(":")
        for _ in range(20):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(said)
            with suppress(ConnectionResetError):
                await reader.read()
            writer.close()
        await until(lambda: not listener._tasks and not listener.all)
        await listener.close()

    _without_collector(main)


def test_failed_dials_leave_nothing_behind() -> None:
    async def main() -> None:
        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(os.urandom(500))
            writer.close()

        dialler = Watched(Identity.generate(), LIMITS)
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        for _ in range(10):
            with suppress(UnreachableError):
                await dialler.dial(f"127.0.0.1:{port}", PeerId(bytes(32)))
        await until(lambda: not dialler.all)
        server.close()
        await server.wait_closed()
        await dialler.close()

    _without_collector(main)


@pytest.mark.long
def test_those_who_do_not_hang_up_do_not_pile_up() -> None:
    """We say why, and wait a moment for the other side to read it; a crowd gets less of that."""

    async def main() -> None:
        async with transport() as listener:
            address = await listener.listen("127.0.0.1:0")
            strangers = [raw_peer(address) for _ in range(3 * _MOST_LINGERING)]
            for stranger in strangers:
                await stranger.__aenter__()
                (await listener.accept()).close("not wanted")
                lingering = [one for one in listener._pool.connections if one.why]
                assert len(lingering) <= _MOST_LINGERING + 2  # the newest, and one that is on its way out
            for stranger in strangers:
                await stranger.__aexit__(None, None, None)

    run(main())


def _without_collector(main: object) -> None:
    gc.collect()
    gc.disable()
    try:
        run(main())  # type: ignore[operator]
    finally:
        gc.enable()
