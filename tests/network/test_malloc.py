"""Memory that strangers took goes back to the system."""

import asyncio
from unittest.mock import patch

import pytest

from troth.crypto import Identity
from troth.network.malloc import give_back_memory
from troth.network.transport import tcp
from troth.network.transport.base import TransportLimits


def test_memory_is_given_back_once_after_a_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for every stranger: it takes a moment."""
    monkeypatch.setattr(tcp, "_TIDY_S", 0.2)

    async def crowd() -> int:
        transport = tcp.TcpTransport(Identity.generate(), TransportLimits(1 << 16, 1 << 20, 1 << 22))
        host, port = (await transport.listen("127.0.0.1:0")).rsplit(":", 1)
        with patch.object(tcp, "give_back_memory", wraps=give_back_memory) as given:
            for _ in range(20):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(b"garbage that is no handshake")
                writer.close()
            await asyncio.sleep(0.8)
            calls = given.call_count
            await transport.close()
        return calls

    assert 1 <= asyncio.run(crowd()) <= 3
