"""The second transport: streams of libp2p, for peers behind NATs and for finding each other without fixed addresses.

Slower than TLS over TCP (every byte passes a daemon twice), and behind the same interface. A connection is one stream
between two daemons that have proved their keys to each other; what travels on it, and when it is hung up, is that of
`connection.py`. A peer that nobody can dial asks a relay to pass on what others send; daemons then try to reach each
other directly, and the relay sees ciphertext only.

Addresses are multiaddrs (`/ip4/203.0.113.5/tcp/4001`, with or without `/p2p/12D3Koo…` at the end), `host:port`, or
`dht:` (or nothing): look the peer up. Its record in the DHT is signed by its own key; see `peer_record.py`.

What the bounds do not cover: the daemon itself takes any number of handshakes from strangers (it drops connections above
four times `most_connections` after two minutes), and a relay's traffic for others is not in `bytes_per_second`.
"""

import asyncio
import ipaddress
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from math import inf
from typing import Any

from troth.crypto.hashing import Digest
from troth.crypto.identity import Identity, PeerId
from troth.errors import OperatorError
from troth.network.transport.addresses import split_address
from troth.network.transport.base import Limits, ListenError, TransportClosedError, UnreachableError
from troth.network.transport.connection import StreamConnection
from troth.network.transport.libp2p.daemon import CIRCUIT_BYTES, Control, Daemon, DaemonError, DaemonOptions
from troth.network.transport.libp2p.multiaddr import (
    dialable,
    id_of_name,
    libp2p_id,
    libp2p_name,
    listenable,
    peer_of_libp2p,
)
from troth.network.transport.libp2p.peer_record import (
    LASTS_S,
    Keeper,
    decode_peer_record,
    dht_key,
    encode_peer_record,
    worth_telling,
)
from troth.network.transport.pool import ConnectionPool

PROTOCOL = "/troth/1"
IN_THE_DHT = "dht:"

_LOOKUP_S = 8.0
_RESERVE_S = 15.0  # until a relay has taken us; a daemon asks once, so after that another one does
_RELAY_PATIENCE_S = 120.0  # with relays that are not there yet
_LOOK_EVERY_S = 1.0  # at our own addresses
_REPUBLISH_S = LASTS_S / 4
_REPLICAS = 20  # of a record; small runs keep all records everywhere, so that crowding around a key takes a crowd
_CACHED_RECORDS = 1024
_FRESH_S = LASTS_S - _REPUBLISH_S - 30.0  # what a peer published last has at least so long to go
_RPC_S = 3.0
_PROBE_S = 5.0
_RELAY_STARTS = 12


class Libp2pTransport:
    """See Transport. `listen("")` accepts nothing directly: others come through `relays`, or not at all.

    `initial_peers` and `relays` are multiaddrs that end in `/p2p/…`; whoever names relays says that nobody can dial it
    directly. `keeps` says whose records this peer holds for others: everybody's, within a bound, unless it is told.
    """

    def __init__(
        self,
        identity: Identity,
        limits: Limits,
        admits: Callable[[PeerId], bool],
        *,
        run: Digest,
        initial_peers: Sequence[str] = (),
        relays: Sequence[str] = (),
        announce: Sequence[str] = (),
        serves_relay: bool = False,
        keeps: Callable[[PeerId], bool] = lambda _: True,
    ) -> None:
        for what, addresses in (("initial peer", initial_peers), ("relay", relays)):
            for address in addresses:
                _require_named(what, address)
        for address in announce:
            if not dialable(address):
                raise OperatorError(f"announce: '{address}' is no address like /ip4/203.0.113.5/tcp/4001")
        if announce and relays:
            raise OperatorError("announce says that others can dial this peer, relays that they cannot: choose one")
        self._libp2p = _load()
        self._identity = identity
        self._limits = limits
        self._admits = admits
        self._run = run
        self._initial_peers = tuple(initial_peers) or tuple(relays)
        self._options = DaemonOptions((), tuple(announce), tuple(relays), serves_relay, limits.most_connections)
        self._keeper = Keeper(run, keeps, time.time)
        self._daemon: Daemon | None = None
        self._control: Control | None = None
        self._p2p: Any = None
        self._dht: Any = None
        self._starting = asyncio.Lock()
        self._upkeep: asyncio.Task[None] | None = None
        self._published: tuple[str, ...] = ()
        self._publish_at = 0.0
        self._join_at = 0.0
        self._pool = ConnectionPool(limits, self._let_go)
        self._writers: dict[StreamConnection, asyncio.StreamWriter] = {}  # a stream closes when nobody holds its writer

    # What users call

    async def listen(self, address: str) -> str:
        if self._pool.closed:
            raise TransportClosedError("this transport was closed")
        async with self._starting:
            if self._daemon is not None:
                raise ListenError("libp2p listens once, and before it dials")
            self._options = replace(self._options, listen=(_listening(address),) if address else ())
            try:
                await self._start()
                found = await self._await_address()
            except (OSError, EOFError, DaemonError, self._libp2p.daemon_error) as error:
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
                except (OSError, EOFError, ListenError, DaemonError, self._libp2p.daemon_error) as error:
                    raise UnreachableError(f"the libp2p daemon does not start: {error}") from error
                self._upkeep = asyncio.create_task(self._keep_up())
        if address not in ("", IN_THE_DHT):
            return await self._dial((_dialled(address, peer),), peer)
        where = await self._look_up(peer, time.time() + _FRESH_S)
        try:
            return await self._dial(where, peer)
        except UnreachableError:  # perhaps it has moved a minute ago; then somebody has a newer record
            newest = await self._look_up(peer, inf)
            if newest == where:
                raise
            return await self._dial(newest, peer)

    async def _dial(self, where: Sequence[str], peer: PeerId) -> StreamConnection:
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                return await self._introduce(where, peer)
        except TimeoutError as error:
            await self._drop_dead_line(peer)
            raise UnreachableError(f"no answer from {where[0]} within {self._limits.handshake_s:g} s") from error
        except (OSError, EOFError) as error:
            raise UnreachableError(f"cannot talk to the libp2p daemon: {error}") from error
        except DaemonError as error:
            raise UnreachableError(_plain(str(error), peer)) from error

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

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where others find us, as last published."""
        return self._published

    # The daemon

    async def _start(self) -> None:
        lib, options = self._libp2p, self._options
        self._published, self._publish_at, self._join_at = (), 0.0, 0.0
        self._daemon = daemon = await self._start_daemon()
        try:
            self._control = Control(daemon)
            # Its sockets beside the daemon's: whoever can write to them can claim to be any peer.
            own = type("P2P", (lib.P2P,), {"_UNIX_SOCKET_PREFIX": f"/unix{daemon.folder}/"})
            self._p2p = await own.replicate(lib.Multiaddr(daemon.control))  # type: ignore[attr-defined]
            await self._p2p.add_binary_stream_handler(PROTOCOL, self._take_stranger)
            self._dht = await lib.DHTNode.create(
                p2p=self._p2p,
                client_mode=bool(options.relays) or not options.listen,  # nobody is sent to whom nobody can dial
                record_validator=self._keeper,
                num_replicas=_REPLICAS,
                cache_size=_CACHED_RECORDS,
                cache_nearest=0,
                cache_refresh_before_expiry=0,
                wait_timeout=_RPC_S,
            )
            # hivemind lets values be dictionaries, and an empty one passes as valid for ever: it would hide every record.
            self._dht.protocol._validate_dictionary = lambda *_: False
            await self._join()
        except BaseException:
            await self._stop()
            raise

    async def _start_daemon(self) -> Daemon:
        """Of the daemon's two relay services the one that starts last serves, and only one of them has our limits.

        The other passes on 128 KiB for each connection. With one processor it comes first (`p2pd`); anyway look, and start again.
        """
        for _ in range(_RELAY_STARTS):
            daemon = await Daemon.start(self._identity, self._options)
            try:
                if not self._options.serves_relay or await self._relays_enough(daemon):
                    return daemon
            except BaseException:
                await daemon.stop()
                raise
            await daemon.stop()
        raise ListenError("the libp2p daemon does not relay as it should; try again, or do without serving as a relay")

    async def _relays_enough(self, daemon: Daemon) -> bool:
        own = worth_telling(await self._addresses_of(Control(daemon)))
        guest = await Daemon.start(Identity.generate(), DaemonOptions((), (), (), False, self._limits.most_connections))
        try:
            control, me = Control(guest), libp2p_id(self._identity.peer)
            async with asyncio.timeout(_PROBE_S):
                await control.connect(me, own, _PROBE_S)
                return await control.relays_bytes(me, _PROBE_S) == CIRCUIT_BYTES
        except (TimeoutError, OSError, EOFError, DaemonError):
            return False
        finally:
            await guest.stop()

    async def _addresses_of(self, control: Control) -> list[str]:
        readable = []
        for raw in await control.addresses():
            with suppress(ValueError, LookupError):  # of kinds that hivemind does not know
                readable.append(str(self._libp2p.Multiaddr(raw)))
        return readable

    async def _stop(self) -> None:
        p2p, daemon, self._p2p, self._daemon, self._control = self._p2p, self._daemon, None, None, None
        if self._dht is not None:
            self._dht.is_alive = False
        if p2p is not None:
            await p2p.shutdown()
        if daemon is not None:
            await daemon.stop()

    async def _keep_up(self) -> None:
        """Stay in the DHT, and be found there."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                if self._daemon is None or self._daemon.ended:
                    self._pool.noted.warn("daemon", "", "the libp2p daemon has ended; starting it again")
                    async with self._starting:
                        await self._stop()
                        await self._start()
                if time.monotonic() >= self._join_at:
                    await self._join()
                await self._publish()
            except Exception as error:  # hivemind raises what it likes, and without this nobody would find us any more
                self._pool.noted.warn("upkeep", type(error).__name__, f"libp2p: {error or type(error).__name__}")

    # Being found, and finding

    async def _await_address(self) -> str:
        options, began = self._options, time.monotonic()
        deadline = began + _RESERVE_S
        while True:
            await self._publish()
            await self._check_relays()
            good = [one for one in self._published if not options.relays or "/p2p-circuit" in one]
            if good or not (options.relays or options.listen):
                # The port stays ours: if the daemon has to be started again, others find it where it was.
                self._options = replace(options, listen=tuple(_settled(one, self._published) for one in options.listen))
                return f"{good[0] if good else ''}/p2p/{libp2p_name(self._identity.peer)}"
            if time.monotonic() >= deadline and not options.relays:
                raise ListenError("the libp2p daemon has no address to listen on")
            if time.monotonic() >= began + _RELAY_PATIENCE_S:
                raise ListenError(
                    f"no relay took this peer within {_RELAY_PATIENCE_S:g} s: check the addresses given as relays, and that "
                    "they are started to serve as such"
                )
            if time.monotonic() >= deadline:
                self._pool.noted.warn("relay", "", "no relay takes this peer yet; trying again")
                await self._stop()
                await self._start()
                deadline = time.monotonic() + _RESERVE_S
            await asyncio.sleep(_LOOK_EVERY_S / 10)

    async def _check_relays(self) -> None:
        """Many relays of the world pass on so little that they serve for an introduction only: then say so."""
        assert self._daemon is not None
        assert self._control is not None
        for relay in self._options.relays:
            if (name := relay.rpartition("/")[2]) in self._daemon.relays:
                most = None
                with suppress(TimeoutError, OSError, EOFError, DaemonError):  # whatever it is, it does not say
                    async with asyncio.timeout(self._limits.handshake_s):
                        most = await self._control.relays_bytes(id_of_name(name), self._limits.handshake_s)
                if most and most < self._limits.most_bulk_bytes + self._limits.most_control_bytes:
                    raise ListenError(
                        f"the relay {relay} passes on only {most} bytes for each connection, which is less than one message: "
                        "use a peer of this run that serves as a relay"
                    )

    async def _publish(self) -> None:
        """Our addresses, when they change and before the record ends."""
        if self._daemon is None or self._control is None:
            return
        taken = self._daemon.relays
        circuits = [f"{relay}/p2p-circuit" for relay in self._options.relays if relay.rpartition("/")[2] in taken]
        addresses = worth_telling([*circuits, *await self._addresses_of(self._control)])
        if addresses == self._published and time.monotonic() < self._publish_at:
            return
        self._published, self._publish_at = addresses, time.monotonic() + _REPUBLISH_S
        if addresses:
            until = time.time() + LASTS_S
            record = encode_peer_record(self._identity, self._run, until, addresses)
            if not await self._dht.store(dht_key(self._run, self._identity.peer), record, until):
                self._publish_at = 0.0

    async def _join(self) -> None:
        """Meet those who introduce us to the others. If all are away, they are asked again soon."""
        alone = self._join_at == 0.0
        met = await asyncio.gather(*map(self._meet, self._initial_peers))
        if met and not any(met):
            self._pool.noted.warn("join", "", "none of the initial peers answers; trying again")
            self._join_at = 0.0
            return
        self._join_at = time.monotonic() + _REPUBLISH_S
        if alone:
            self._publish_at = 0.0  # what was published among ourselves has to be told to others

    async def _meet(self, address: str) -> bool:
        where, _, name = address.rpartition("/p2p/")
        other = self._libp2p.PeerID.from_base58(name)
        if other.to_bytes() == libp2p_id(self._identity.peer):
            return True
        if self._control is None:
            return False
        with suppress(TimeoutError, OSError, EOFError, DaemonError):
            async with asyncio.timeout(self._limits.handshake_s):
                await self._control.connect(other.to_bytes(), [where], self._limits.handshake_s)
            return await self._dht.protocol.call_ping(other) is not None
        return False

    async def _look_up(self, peer: PeerId, sufficient: float) -> tuple[str, ...]:
        """From its record: the first that lasts at least until then, or else the one that lasts longest.

        Searching on for something better takes as long as a liar wants: it sends us to neighbours that do not exist.
        """
        key = dht_key(self._run, peer)
        self._keeper.wanted.add(peer)
        try:
            async with asyncio.timeout(_LOOKUP_S):
                found = (await self._dht.get_many([key], sufficient_expiration_time=sufficient))[key]
        except TimeoutError as error:
            raise UnreachableError(f"the DHT did not answer within {_LOOKUP_S:g} s") from error
        finally:
            self._keeper.wanted.discard(peer)
        raw = found.value if found is not None else None
        where = decode_peer_record(raw, self._run, time.time()) if isinstance(raw, bytes) else None
        if where is None or where.peer != peer:
            raise UnreachableError(f"nobody in the DHT knows where {peer.hex()[:16]} is")
        return where.addresses

    # Dialling

    async def _introduce(self, where: Sequence[str], peer: PeerId) -> StreamConnection:
        control = self._control
        if control is None:
            raise UnreachableError("the libp2p daemon is down for the moment")
        await control.connect(libp2p_id(peer), where, self._limits.handshake_s)
        stream = await control.open_stream(peer, PROTOCOL, self._limits.handshake_s)
        answers = stream.peer == peer
        verdict = peer if answers else f"another key answers than {peer.hex()[:16]}"
        connection = self._pool.new_connection(lambda _: verdict, dialled=True)
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
        await control.treasure(peer)
        return connection

    async def _drop_dead_line(self, peer: PeerId) -> None:
        """A daemon keeps a line to a machine that is gone for as long as it can; the next attempt needs a new one."""
        if self._control is None or any(one.peer == peer for one in self._pool.connections):
            return
        with suppress(TimeoutError, OSError, EOFError, DaemonError):
            async with asyncio.timeout(1.0):
                await self._control.disconnect(peer)

    # Accepting

    async def _take_stranger(self, info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A stream that somebody opened. The daemon has checked the key; returns when the stream has ended."""
        verdict = self._vet_stranger(peer_of_libp2p(info.peer_id.to_bytes()))
        if (
            isinstance(verdict, str)
            and sum(bool(one.refusal) for one in self._pool.connections) >= self._limits.most_handshakes
        ):
            writer.transport.abort()  # no time for manners
            return
        connection = self._pool.new_connection(lambda _: verdict, dialled=False)
        await self._attach(connection, reader, writer)
        if connection.refusal:
            self._pool.noted.warn("refused", info.peer_id.to_base58(), f"turned away: {connection.refusal}")
        elif not connection.why:
            self._pool.admit(connection)
            with suppress(OSError, EOFError, DaemonError):
                if self._control is not None:
                    await self._control.treasure(connection.peer)
        await connection.closed()

    def _vet_stranger(self, peer: PeerId | None) -> PeerId | str:
        if peer is None:
            return "your key is not an Ed25519 key"
        if not self._admits(peer):
            return f"the key {peer.hex()[:16]} is not admitted here"
        if self._pool.closed or self._pool.accepted >= self._limits.most_connections:
            return "no place left"
        return peer

    # Both

    async def _attach(
        self, connection: StreamConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Let the connection take over a stream, without losing what has come already."""
        self._writers[connection] = writer
        transport, over = writer.transport, reader.at_eof()
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        reader.feed_eof()
        early = memoryview(await reader.read())  # does not wait, so nothing can come in between
        transport.set_protocol(connection)
        connection.connection_made(transport)
        transport.resume_reading()
        while early and not connection.why:
            room = connection.get_buffer(-1)
            count = min(len(room), len(early))
            room[:count] = early[:count]
            early = early[count:]
            connection.buffer_updated(count)
        if transport.is_closing():
            connection.connection_lost(None)  # the daemon hung up before we looked, and nobody will tell us again
        elif over:
            connection.eof_received()

    def _let_go(self, connection: StreamConnection) -> None:
        self._writers.pop(connection, None)


@dataclass(frozen=True)
class _Libp2p:
    """What we use of hivemind."""

    P2P: Any
    PeerID: Any
    Multiaddr: Any
    DHTNode: Any
    daemon_error: type[Exception]


def _load() -> _Libp2p:
    """hivemind takes seconds to import, and most peers do without it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            p2p = import_module("hivemind.p2p")
            node = import_module("hivemind.dht.node")
            multiaddr = import_module("hivemind.utils.multiaddr")
    except ImportError as error:
        raise OperatorError(f"libp2p needs hivemind ({error}): pip install 'troth[libp2p]'") from error
    return _Libp2p(p2p.P2P, p2p.PeerID, multiaddr.Multiaddr, node.DHTNode, p2p.P2PDaemonError)


def _require_named(what: str, address: str) -> None:
    where, found, name = address.rpartition("/p2p/")
    if not found or not name or not dialable(where):
        raise OperatorError(f"'{address}' is no address of a {what}: write /ip4/203.0.113.5/tcp/4001/p2p/12D3Koo…")


def _listening(address: str) -> str:
    """The multiaddr for `host:port`."""
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


def _settled(asked: str, got: Sequence[str]) -> str:
    """With the port that was found free, where any was asked for."""
    ports = [one.rpartition("/tcp/")[2] for one in got if "/p2p-circuit" not in one]
    return asked.removesuffix("/tcp/0") + f"/tcp/{ports[0]}" if asked.endswith("/tcp/0") and ports else asked


def _dialled(address: str, peer: PeerId) -> str:
    """The multiaddr to dial, without the peer's id at its end: the daemon wants them apart."""
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


def _plain(said: str, peer: PeerId) -> str:
    """What the daemon says, in words for people."""
    if "peer id mismatch" in said:
        return f"another key answers than {peer.hex()[:16]}"
    if "protocols not supported" in said:
        return "it does not speak Troth, or another version of it"
    if "NO_RESERVATION" in said:
        return "the relay does not know it (any more)"
    if "dial backoff" in said:
        return "it could not be reached a moment ago; waiting before the next attempt"
    reason = " ".join(said.removeprefix("Connect failed. msg=").split())
    return f"cannot reach it: {''.join(c if c.isprintable() else '?' for c in reason)[:200]}"
