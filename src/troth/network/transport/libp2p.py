"""The second transport: streams of libp2p, for peers behind NATs and for finding each other without fixed addresses.

Slower than TLS over TCP (every byte passes a daemon twice), and behind the same interface. A connection is one stream
between two daemons that have proved their keys to each other; framing, bounds and hanging up are those of
`connection.py`. A peer that nobody can dial asks a relay to pass on what others send; daemons then try to reach each
other directly, and the relay sees ciphertext only.

Addresses are multiaddrs (`/ip4/203.0.113.5/tcp/4001`, with or without `/p2p/12D3Koo…` at the end), `host:port`, or
`dht:` (or nothing): look the peer up. Its record in the DHT is signed by its own key.

The bounds do not cover everything: the daemon itself takes any number of handshakes from strangers (it drops connections
above four times `most_connections` after two minutes), and a relay's traffic for others is not in `bytes_per_second`.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from troth.crypto.identity import PeerId
from troth.errors import OperatorError
from troth.network.transport.base import ListenError, LocalPeer, TransportClosedError, UnreachableError
from troth.network.transport.connection import StreamConnection
from troth.network.transport.libp2p_addresses import (
    Keeper,
    dialable,
    libp2p_id,
    libp2p_name,
    load_hivemind,
    peer_of_libp2p,
)
from troth.network.transport.libp2p_daemon import Control, DaemonError, DaemonOptions, in_words
from troth.network.transport.libp2p_node import (
    FRESH_S,
    PROTOCOL,
    Libp2pNode,
    NodeSetup,
    dial_multiaddr,
    entrances_of,
    listen_multiaddr,
    require_peer_id,
    with_real_port,
)
from troth.network.transport.pool import ConnectionPool

IN_THE_DHT = "dht:"

_RESERVE_S = 15.0  # until a relay has taken us; a daemon asks only once, so after this time it is started again
_RELAY_PATIENCE_S = 120.0  # with relays that are not there yet
_UPKEEP_EVERY_S = 1.0
_DISCONNECT_S = 1.0


@dataclass(frozen=True)
class Libp2pOptions:
    """How others are found and reached (needs the extra `libp2p`).

    `initial_peers` and `relays` are multiaddrs that end in `/p2p/…`.
    """

    initial_peers: tuple[str, ...] = ()  # to enter the DHT by; none: relays, and founders with an address
    relays: tuple[str, ...] = ()  # if there are any, this peer is reached through them only
    announce: tuple[str, ...] = ()  # multiaddrs that others can dial, where they are not those listened on
    serves_relay: bool = False  # for peers behind NATs

    lookup_address = IN_THE_DHT
    tells_address = True

    def __post_init__(self) -> None:
        for kind, addresses in (("initial peer", self.initial_peers), ("relay", self.relays)):
            for address in addresses:
                require_peer_id(kind, address)
        for address in self.announce:
            if not dialable(address):
                raise OperatorError(f"announce: '{address}' is no address like /ip4/203.0.113.5/tcp/4001")
        if self.announce and self.relays:
            raise OperatorError("announce says that others can dial this peer, relays that they cannot: choose one")

    def listen_address(self, port: int | None) -> str:
        return f"0.0.0.0:{port}" if port else ""

    def make(self, local: LocalPeer) -> "Libp2pTransport":
        """Whoever has the manifest needs nothing else, as long as one founder in it has an address."""
        entrances = self.initial_peers or tuple(dict.fromkeys((*self.relays, *entrances_of(local.addresses))))
        return Libp2pTransport(local, replace(self, initial_peers=entrances))


class Libp2pTransport:
    """See Transport. `listen("")` accepts nothing directly: others come through relays, or not at all.

    It holds records for others that belong to the run. Its own is published as soon as it belongs itself, since nobody would keep
    it earlier.
    """

    def __init__(self, local: LocalPeer, options: Libp2pOptions) -> None:
        self._identity = local.identity
        self._limits = limits = local.limits
        self._pool = ConnectionPool(limits, self._let_go)
        self._setup = NodeSetup(
            load_hivemind(),
            local,
            Keeper(local.run, local.belongs, time.time),
            tuple(options.initial_peers) or tuple(options.relays),
            tuple(options.relays),
            self._take_stranger,
            self._pool.warnings.warn,
        )
        self._daemon_options = DaemonOptions(
            (), tuple(options.announce), tuple(options.relays), options.serves_relay, limits.most_connections
        )
        self._running: Libp2pNode | None = None
        self._starting = asyncio.Lock()
        self._upkeep: asyncio.Task[None] | None = None
        self._writers: dict[StreamConnection, asyncio.StreamWriter] = {}  # a stream closes when nobody holds its writer

    # The interface

    async def listen(self, address: str) -> str:
        if self._pool.closed:
            raise TransportClosedError("this transport was closed")
        async with self._starting:
            if self._running is not None:
                raise ListenError("libp2p listens once, and before it dials")
            listen = (listen_multiaddr(address),) if address else ()
            self._daemon_options = replace(self._daemon_options, listen=listen)
            try:
                await self._start()
                self._now_running().check_clock()
                found = await self._await_address()
            except (OSError, EOFError, DaemonError, self._setup.hivemind.daemon_error) as error:
                await self._stop()
                raise ListenError(f"the libp2p daemon failed ({error or 'it hung up'}); try again") from error
            except BaseException:
                await self._stop()
                raise
            self._upkeep = asyncio.create_task(self._keep_up())
        return found

    async def dial(self, address: str, peer: PeerId) -> StreamConnection:
        if self._pool.closed:
            raise UnreachableError("this transport was closed")
        async with self._starting:
            if self._upkeep is None:
                try:
                    await self._start()
                except (OSError, EOFError, ListenError, DaemonError, self._setup.hivemind.daemon_error) as error:
                    raise UnreachableError(f"the libp2p daemon does not start: {error}") from error
                self._upkeep = asyncio.create_task(self._keep_up())
        if address not in ("", IN_THE_DHT):
            return await self._dial((dial_multiaddr(address, peer),), peer)
        found = await self._now_running().look_up(peer, time.time() + FRESH_S)
        try:
            return await self._dial(found, peer)
        except UnreachableError:  # perhaps it has moved a minute ago; then somebody has a newer record
            newest = await self._now_running().look_up(peer, inf)
            if newest == found:
                raise
            return await self._dial(newest, peer)

    async def accept(self) -> StreamConnection:
        return await self._pool.accept()

    async def close(self) -> None:
        self._pool.closed = True
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.wait({self._upkeep})
        await self._pool.close()
        async with self._starting:
            await self._stop()

    # Our node

    async def _start(self) -> None:
        self._running = await Libp2pNode.start(self._setup, self._daemon_options)
        try:
            await self._running.join()
        except BaseException:
            await self._stop()
            raise

    async def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.stop()

    def _now_running(self) -> Libp2pNode:
        if self._running is None:
            raise UnreachableError("the libp2p daemon is down for the moment")
        return self._running

    async def _keep_up(self) -> None:
        """Keep the daemon running, stay in the DHT, and be found there."""
        while True:
            await asyncio.sleep(_UPKEEP_EVERY_S)
            try:
                if self._running is None or self._running.daemon.ended:
                    self._pool.warnings.warn("daemon", "", "the libp2p daemon has ended; starting it again")
                    async with self._starting:
                        await self._stop()
                        await self._start()
                node = self._now_running()
                await node.join_when_due()
                await node.publish()
            except Exception as error:  # hivemind raises what it likes, and without this nobody would find us any more
                self._pool.warnings.warn("upkeep", type(error).__name__, f"libp2p: {error or type(error).__name__}")

    async def _await_address(self) -> str:
        """Wait until we have an address that others can use, through a relay if we need one. Raises ListenError."""
        options, began = self._daemon_options, time.monotonic()
        deadline = began + _RESERVE_S
        while True:
            node = self._now_running()
            await node.publish()
            await node.check_relays()
            published = node.published
            good = [one for one in published if not options.relays or "/p2p-circuit" in one]
            if good or not (options.relays or options.listen):
                # The port stays ours: if the daemon has to be started again, others find it where it was.
                listen = tuple(with_real_port(one, published) for one in options.listen)
                self._daemon_options = replace(options, listen=listen)
                return f"{good[0] if good else ''}/p2p/{libp2p_name(self._identity.peer)}"
            if time.monotonic() >= deadline and not options.relays:
                raise ListenError("the libp2p daemon has no address to listen on")
            if time.monotonic() >= began + _RELAY_PATIENCE_S:
                raise ListenError(
                    f"no relay took this peer within {_RELAY_PATIENCE_S:g} s: check the addresses given as relays, and that "
                    "they are started to serve as such"
                )
            if time.monotonic() >= deadline:
                self._pool.warnings.warn("relay", "", "no relay takes this peer yet; trying again")
                await self._stop()
                await self._start()
                deadline = time.monotonic() + _RESERVE_S
            await asyncio.sleep(_UPKEEP_EVERY_S / 10)

    # Dialling

    async def _dial(self, addresses: Sequence[str], peer: PeerId) -> StreamConnection:
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                return await self._introduce(addresses, peer)
        except TimeoutError as error:
            await self._drop_dead_connection(peer)
            raise UnreachableError(f"no answer from {addresses[0]} within {self._limits.handshake_s:g} s") from error
        except (OSError, EOFError) as error:
            raise UnreachableError(f"cannot talk to the libp2p daemon: {error}") from error
        except DaemonError as error:
            raise UnreachableError(in_words(str(error), peer)) from error

    async def _introduce(self, addresses: Sequence[str], peer: PeerId) -> StreamConnection:
        control = self._now_running().control
        await control.connect(libp2p_id(peer), addresses, self._limits.handshake_s)
        stream = await control.open_stream(peer, PROTOCOL, self._limits.handshake_s)
        answers = stream.peer == peer
        verdict = peer if answers else f"another key answers than {peer.hex()[:16]}"
        connection = self._pool.new_connection(lambda _: verdict, dialled=True, source="")
        await self._attach(connection, stream.reader, stream.writer)
        try:
            if self._pool.closed:
                connection.close("shutting down")
            await connection.greeted()
        except BaseException:
            connection.abandon()
            raise
        if connection.why:
            raise UnreachableError(connection.why)
        await control.protect(peer)
        return connection

    async def _drop_dead_connection(self, peer: PeerId) -> None:
        """Make the daemon drop its connection to a machine that is gone: the next attempt needs a new one."""
        if self._running is None or any(one.peer == peer for one in self._pool.connections):
            return
        with suppress(TimeoutError, OSError, EOFError, DaemonError):
            async with asyncio.timeout(_DISCONNECT_S):
                await self._running.control.disconnect(peer)

    # Accepting

    async def _take_stranger(
        self, control: Control, info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Handle a stream that somebody opened. The daemon has checked the key; returns when the stream has ended."""
        verdict = self._vet_stranger(peer_of_libp2p(info.peer_id.to_bytes()))
        if (
            isinstance(verdict, str)
            and sum(bool(one.refusal) for one in self._pool.connections) >= self._limits.most_handshakes
        ):
            writer.transport.abort()  # too many to tell each of them why
            return
        connection = self._pool.new_connection(lambda _: verdict, dialled=False, source="")
        await self._attach(connection, reader, writer)
        if connection.refusal:
            self._pool.warnings.warn("refused", info.peer_id.to_base58(), f"turned away: {connection.refusal}")
        elif not connection.why:
            self._pool.admit(connection)
            with suppress(OSError, EOFError, DaemonError):
                await control.protect(connection.peer)
        await connection.closed()

    def _vet_stranger(self, peer: PeerId | None) -> PeerId | str:
        if peer is None:
            return "your key is not an Ed25519 key"
        return "no place left" if self._pool.closed or not self._pool.has_place(1) else peer

    async def _attach(
        self, connection: StreamConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Let the connection take over a stream from asyncio's reader and writer, which hivemind gives us, without losing bytes
        that have arrived already."""
        self._writers[connection] = writer
        transport, over = writer.transport, reader.at_eof()
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        reader.feed_eof()
        early = await reader.read()  # does not wait, so nothing can come in between
        transport.set_protocol(connection)
        connection.connection_made(transport)
        transport.resume_reading()
        connection.feed(early)
        if transport.is_closing():
            connection.connection_lost(None)  # the daemon hung up before we looked, and will not tell us again
        elif over:
            connection.eof_received()

    def _let_go(self, connection: StreamConnection) -> None:
        self._writers.pop(connection, None)
