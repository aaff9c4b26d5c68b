"""An internet in memory in place of hivemind and its daemon: enough of both for `Libp2pTransport` to run anywhere.

Real daemons are tested in `tests/nettest/test_libp2p.py`, where hivemind is installed.
"""

import asyncio
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from troth.crypto.identity import PeerId
from troth.network.transport.libp2p_addresses import (
    Hivemind,
    dht_id,
    id_of_name,
    libp2p_id,
    libp2p_name,
    peer_of_libp2p,
)
from troth.network.transport.libp2p_daemon import DaemonError, DaemonOptions, DaemonStream
from troth.network.transport.libp2p_node import Libp2pNode, NodeSetup


@dataclass(frozen=True)
class FakeName:
    """A peer id, as hivemind hands it out."""

    raw: bytes

    @classmethod
    def from_base58(cls, name: str) -> "FakeName":
        return cls(id_of_name(name))

    def to_bytes(self) -> bytes:
        return self.raw

    def to_base58(self) -> str:
        peer = peer_of_libp2p(self.raw)
        return libp2p_name(peer) if peer is not None else "?"


@dataclass(frozen=True)
class StreamInfo:
    peer_id: FakeName


class FakeDaemonError(Exception):
    pass


HIVEMIND = Hivemind(P2P=None, PeerID=FakeName, Multiaddr=str, DHTNode=None, daemon_error=FakeDaemonError)


@dataclass(frozen=True)
class FakeEntry:
    """A record as a node is asked to keep it."""

    key: bytes
    value: bytes
    expiration_time: float
    subkey: bytes = msgspec.msgpack.encode(None)


@dataclass(frozen=True)
class FakeRecord:
    value: bytes
    until: float


@dataclass
class Internet:
    """Every node that is up, and the records that all of them keep."""

    nodes: dict[bytes, "FakeNode"] = field(default_factory=dict)
    records: dict[bytes, FakeRecord] = field(default_factory=dict)
    older: dict[bytes, FakeRecord] = field(default_factory=dict)  # found by a search that ends early
    next_port: int = 4001
    relay_limit: int = 0  # of every relay
    clocks: dict[bytes, float] = field(default_factory=dict)  # seconds by which a node's clock is wrong

    async def start(self, setup: NodeSetup, options: DaemonOptions) -> "FakeNode":
        listen = []
        for address in options.listen:
            host, _, port = address.rpartition("/tcp/")
            listen.append(f"{host}/tcp/{self.next_port if port == '0' else port}")
            self.next_port += port == "0"
        node = FakeNode(self, setup, options, listen)
        self.nodes[libp2p_id(setup.local.identity.peer)] = node
        return node


class FakeNode(Libp2pNode):
    """A node that is its own daemon, control socket and DHT."""

    def __init__(self, internet: Internet, setup: NodeSetup, options: DaemonOptions, listen: list[str]) -> None:
        super().__init__(setup, self, self)  # type: ignore[arg-type]
        self.dht = self.protocol = self
        self.relays: frozenset[str] = frozenset()
        self.ended = False
        self.listen = listen
        self._internet = internet
        self._serving: set[asyncio.Task[None]] = set()
        self.take_relays(options.relays)

    def take_relays(self, addresses: Sequence[str]) -> None:
        """Relays that are up take us."""
        names = [address.rpartition("/")[2] for address in addresses]
        self.relays = frozenset(name for name in names if id_of_name(name) in self._internet.nodes)

    async def own_addresses(self) -> list[str]:
        return self.listen

    async def stop(self) -> None:
        if self._internet.nodes.get(libp2p_id(self.setup.local.identity.peer)) is self:
            del self._internet.nodes[libp2p_id(self.setup.local.identity.peer)]
        self.ended = True
        await asyncio.gather(*self._serving)

    # Control

    async def connect(self, peer: bytes, addresses: Sequence[str], within_s: float) -> None:
        other = self._internet.nodes.get(peer)
        relayed = [address for address in addresses if address.endswith("/p2p-circuit")]
        if other is None or not (relayed or set(addresses) & set(other.listen)):
            raise DaemonError("Connect failed. msg=nobody there")

    async def open_stream(self, peer: PeerId, protocol: str, within_s: float) -> DaemonStream:
        near, far = socket.socketpair()
        other = self._internet.nodes[libp2p_id(peer)]
        reader, writer = await asyncio.open_unix_connection(sock=far)
        info = StreamInfo(FakeName(libp2p_id(self.setup.local.identity.peer)))
        task = asyncio.ensure_future(other.setup.on_stream(other.control, info, reader, writer))
        other._serving.add(task)
        task.add_done_callback(other._serving.discard)
        return DaemonStream(peer, *await asyncio.open_unix_connection(sock=near))

    async def protect(self, peer: PeerId) -> None:
        pass

    async def disconnect(self, peer: PeerId) -> None:
        pass

    async def relay_limit(self, relay: bytes, within_s: float) -> int:
        return self._internet.relay_limit

    # DHT

    async def call_ping(self, other: FakeName) -> object | None:
        return self._internet.nodes.get(other.raw)

    async def clock_of(self, other: FakeName) -> float:
        return time.time() + self._internet.clocks.get(other.raw, 0.0)

    async def store(self, key: bytes, value: bytes, until: float) -> bool:
        """Every node that others can dial is asked to keep it, and one is enough."""
        entry = FakeEntry(dht_id(key), msgspec.msgpack.encode(value), until)
        keepers = [node.setup.keeper for node in self._internet.nodes.values() if node.listen]
        kept = any(keeper.validate(entry) for keeper in keepers)
        if kept:
            self._internet.records[key] = FakeRecord(value, until)
        return kept

    async def get_many(self, keys: Sequence[bytes], sufficient_expiration_time: float) -> dict[bytes, Any]:
        older = self._internet.older
        if older.keys() & set(keys) and older[keys[0]].until >= sufficient_expiration_time:
            return {key: older.get(key) for key in keys}
        return {key: self._internet.records.get(key) for key in keys}
