"""Our node of the libp2p network: a daemon, the way to ask it, and a member of the DHT, started and stopped together."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from troth.network.transport.base import LocalPeer
from troth.network.transport.libp2p.addresses import own_addresses
from troth.network.transport.libp2p.bindings import Hivemind
from troth.network.transport.libp2p.control import Control
from troth.network.transport.libp2p.daemon import Daemon, DaemonOptions
from troth.network.transport.libp2p.peer_record import Keeper
from troth.network.transport.libp2p.relays import start_daemon

PROTOCOL = "/troth/1"

_REPLICAS = 20  # of a record; small runs keep all records everywhere, so that crowding around a key takes a crowd
_CACHED_RECORDS = 1024
_RPC_S = 3.0

OnStream = Callable[[Control, Any, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class NodeSetup:
    """Everything that stays the same when a node is started again."""

    hivemind: Hivemind
    local: LocalPeer
    keeper: Keeper
    initial_peers: tuple[str, ...]
    relays: tuple[str, ...]
    on_stream: OnStream  # called for every stream that somebody else opens
    warn: Callable[[str, str, str], None]  # kind, source, text


class Libp2pNode:
    """A running node. Made by `start`."""

    def __init__(self, setup: NodeSetup, daemon: Daemon) -> None:
        self.setup = setup
        self.daemon = daemon
        self.control = Control(daemon)
        self.p2p: Any = None
        self.dht: Any = None

    @classmethod
    async def start(cls, setup: NodeSetup, options: DaemonOptions) -> "Libp2pNode":
        """Raises ListenError, DaemonError, OSError, EOFError and hivemind's error."""
        node = cls(setup, await start_daemon(setup.hivemind, setup.local.identity, options))
        try:
            await node._open(reachable=bool(options.listen) and not options.relays)
        except BaseException:
            await node.stop()
            raise
        return node

    async def _open(self, *, reachable: bool) -> None:
        setup, hivemind = self.setup, self.setup.hivemind

        async def on_stream(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await setup.on_stream(self.control, info, reader, writer)

        # Its sockets lie beside the daemon's: any process that can write to them can claim to be any peer.
        own = type("P2P", (hivemind.P2P,), {"_UNIX_SOCKET_PREFIX": f"/unix{self.daemon.folder}/"})
        self.p2p = await own.replicate(hivemind.Multiaddr(self.daemon.control))  # type: ignore[attr-defined]
        await self.p2p.add_binary_stream_handler(PROTOCOL, on_stream)
        self.dht = await hivemind.DHTNode.create(
            p2p=self.p2p,
            client_mode=not reachable,  # nobody is sent to a peer that cannot be dialled
            record_validator=setup.keeper,
            num_replicas=_REPLICAS,
            cache_size=_CACHED_RECORDS,
            cache_nearest=0,
            cache_refresh_before_expiry=0,
            wait_timeout=_RPC_S,
        )
        # hivemind lets values be dictionaries, and an empty one passes as valid for ever: it would hide every record.
        self.dht.protocol._validate_dictionary = lambda *_: False

    async def clock_of(self, other: Any) -> float | None:
        """The Unix time at another node of the DHT, as it says; None if it does not answer."""
        request = import_module("hivemind.proto.dht_pb2").PingRequest()
        try:
            answer = await self.dht.protocol.get_stub(other).rpc_ping(request, timeout=_RPC_S)
        except Exception:  # hivemind raises what it likes
            return None
        return float(answer.dht_time) or None

    @property
    def ended(self) -> bool:
        return self.daemon.ended

    async def own_addresses(self) -> list[str]:
        return await own_addresses(self.setup.hivemind, self.control)

    async def stop(self) -> None:
        if self.dht is not None:
            self.dht.is_alive = False
        if self.p2p is not None:
            await self.p2p.shutdown()
        await self.daemon.stop()
