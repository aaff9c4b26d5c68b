"""Our node of the libp2p network: a daemon, the way to ask it, and a member of the DHT, started and stopped
together; addresses as people write them; relays."""

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from statistics import median
from typing import Any

from troth.crypto.identity import Identity, PeerId
from troth.errors import OperatorError
from troth.network.transport.addresses import split_address
from troth.network.transport.base import ListenError, LocalPeer, UnreachableError
from troth.network.transport.libp2p_addresses import (
    LASTS_S,
    Hivemind,
    Keeper,
    decode_peer_record,
    dht_key,
    dialable,
    encode_peer_record,
    id_of_name,
    libp2p_id,
    libp2p_name,
    listenable,
    worth_telling,
)
from troth.network.transport.libp2p_daemon import CIRCUIT_BYTES, Control, Daemon, DaemonError, DaemonOptions

PROTOCOL = "/troth/1"

_REPLICAS = 20  # of a record; small runs keep all records everywhere, so that crowding around a key takes a crowd
_CACHED_RECORDS = 1024
_RPC_S = 3.0
_PROBE_S = 5.0  # for a relay of ours
_RELAY_STARTS = 12
_LOOKUP_S = 8.0
_REJOIN_S = 3.0  # after which initial peers are tried again, when none has answered
_REPUBLISH_S = LASTS_S / 4
_MOST_CLOCK_OFF_S = LASTS_S / 2  # with more, records may seem to be over when they are made
FRESH_S = LASTS_S - _REPUBLISH_S - 30.0  # the newest record of a peer lasts at least this long

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
    """A running node, made by `start`: a new one whenever the daemon is started again."""

    def __init__(self, setup: NodeSetup, daemon: Daemon, control: Control) -> None:
        self.setup = setup
        self.daemon = daemon
        self.control = control
        self.p2p: Any = None
        self.dht: Any = None
        self.published: tuple[str, ...] = ()  # our addresses, as last published
        self._publish_at = 0.0
        self._join_at = 0.0
        self._alone = True  # no initial peer has answered
        self._clocks_off: dict[str, float] = {}  # seconds by which our clock is ahead of initial peers'

    @classmethod
    async def start(cls, setup: NodeSetup, options: DaemonOptions) -> "Libp2pNode":
        """Raises ListenError, DaemonError, OSError, EOFError and hivemind's error."""
        daemon = await start_daemon(setup.hivemind, setup.local.identity, options)
        node = cls(setup, daemon, Control(daemon))
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
    def taken_by(self) -> list[str]:
        """The relays that have taken us."""
        return [relay for relay in self.setup.relays if relay.rpartition("/")[2] in self.daemon.relays]

    async def check_relays(self) -> None:
        """Raises ListenError if a relay passes on so little that it serves for an introduction only."""
        limits = self.setup.local.limits
        for relay in self.taken_by:
            name = id_of_name(relay.rpartition("/")[2])
            most = None
            with suppress(TimeoutError, OSError, EOFError, DaemonError):  # then its limit stays unknown
                async with asyncio.timeout(limits.handshake_s):
                    most = await self.control.relay_limit(name, limits.handshake_s)
            if most and most < limits.most_bulk_bytes + limits.most_control_bytes:
                raise ListenError(
                    f"the relay {relay} passes on only {most} bytes for each connection, which is less than one message: "
                    "use a peer of this run that serves as a relay"
                )

    async def own_addresses(self) -> list[str]:
        return await own_addresses(self.setup.hivemind, self.control)

    async def stop(self) -> None:
        if self.dht is not None:
            self.dht.is_alive = False
        if self.p2p is not None:
            await self.p2p.shutdown()
        await self.daemon.stop()

    # Finding each other in the DHT: joining it, publishing our own addresses, looking up those of others

    async def publish(self) -> None:
        """Publish our addresses, when they change and before the record ends, if we are of those whose records are kept."""
        setup = self.setup
        through_relays = [f"{relay}/p2p-circuit" for relay in self.taken_by]
        addresses = worth_telling([*through_relays, *await self.own_addresses()])
        if addresses == self.published and time.monotonic() < self._publish_at:
            return
        self.published, self._publish_at = addresses, time.monotonic() + _REPUBLISH_S
        if addresses and not (setup.keeper.keeps(setup.local.identity.peer) and await self._store(addresses)):
            self._publish_at = 0.0

    async def _store(self, addresses: tuple[str, ...]) -> bool:
        setup, until = self.setup, time.time() + LASTS_S
        record = encode_peer_record(setup.local.identity, setup.local.run, until, addresses)
        return bool(await self.dht.store(dht_key(setup.local.run, setup.local.identity.peer), record, until))

    async def join_when_due(self) -> None:
        if time.monotonic() >= self._join_at:
            await self.join()

    async def join(self) -> None:
        """Connect to the initial peers, which know the others. If none answers, they are asked again soon."""
        met = await asyncio.gather(*map(self._meet, self.setup.initial_peers))
        if met and not any(met):
            self.setup.warn("join", "", "none of the initial peers answers; trying again")
            self._alone, self._join_at = True, time.monotonic() + _REJOIN_S
            return
        self._join_at = time.monotonic() + _REPUBLISH_S
        if self._alone:
            self._alone, self._publish_at = False, 0.0  # what was published while alone has to reach the others

    async def _meet(self, address: str) -> bool:
        where, _, name = address.rpartition("/p2p/")
        other = self.setup.hivemind.PeerID.from_base58(name)
        if other.to_bytes() == libp2p_id(self.setup.local.identity.peer):
            return True
        with suppress(TimeoutError, OSError, EOFError, DaemonError):
            async with asyncio.timeout(self.setup.local.limits.handshake_s):
                await self.control.connect(other.to_bytes(), [where], self.setup.local.limits.handshake_s)
            met = await self.dht.protocol.call_ping(other) is not None
            asked = time.time()
            if met and (theirs := await self.clock_of(other)) is not None:
                self._clocks_off[name] = (asked + time.time()) / 2 - theirs
            return met
        return False

    def check_clock(self) -> None:
        """Raises ListenError if our clock is so far off those of the initial peers, as most of them say, that nobody would find
        us, nor we them."""
        off_s = median(self._clocks_off.values()) if self._clocks_off else 0.0
        if abs(off_s) > _MOST_CLOCK_OFF_S:
            raise ListenError(
                f"this machine's clock is {abs(off_s):.0f} s {'ahead of' if off_s > 0 else 'behind'} the clocks of those that it "
                "finds the others by, and addresses in the DHT end at a given time: set the clock"
            )

    async def look_up(self, peer: PeerId, sufficient: float) -> tuple[str, ...]:
        """The addresses in a peer's record: the first that lasts at least until then, or else the one that lasts longest.

        Searching on for something better takes as long as a liar wants: it sends us to neighbours that do not exist.
        """
        setup = self.setup
        key = dht_key(setup.local.run, peer)
        setup.keeper.wanted.add(peer)
        try:
            async with asyncio.timeout(_LOOKUP_S):
                found = (await self.dht.get_many([key], sufficient_expiration_time=sufficient))[key]
        except TimeoutError as error:
            raise UnreachableError(f"the DHT did not answer within {_LOOKUP_S:g} s") from error
        finally:
            setup.keeper.wanted.discard(peer)
        raw = found.value if found is not None else None
        record = decode_peer_record(raw, setup.local.run, time.time()) if isinstance(raw, bytes) else None
        if record is None or record.peer != peer:
            raise UnreachableError(f"nobody in the DHT knows where {peer.hex()[:16]} is")
        return record.addresses


# Addresses as people give them (`host:port` or a multiaddr) turned into the multiaddrs that the daemon wants, and back.


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


# Relays: peers that nobody can dial are reached through them. Most relays of the world pass on too little to train with.


async def start_daemon(hivemind: Hivemind, identity: Identity, options: DaemonOptions) -> Daemon:
    """Start a daemon, again until it relays as much as it should, if it is to serve as a relay. Raises ListenError.

    Of the daemon's two relay services the one that starts last serves, and only one of them has our limits: the other
    passes on 128 KiB for each connection. With one processor ours usually starts last (`p2pd`), but not always.
    """
    for _ in range(_RELAY_STARTS):
        daemon = await Daemon.start(identity, options)
        try:
            if not options.serves_relay or await _relays_enough(hivemind, identity, daemon, options.most_connections):
                return daemon
        except BaseException:
            await daemon.stop()
            raise
        await daemon.stop()
    raise ListenError("the libp2p daemon does not relay as it should; try again, or do without serving as a relay")


async def _relays_enough(hivemind: Hivemind, identity: Identity, daemon: Daemon, most_connections: int) -> bool:
    """Ask our own daemon for a reservation, as a guest would."""
    own = worth_telling(await own_addresses(hivemind, Control(daemon)))
    guest = await Daemon.start(Identity.generate(), DaemonOptions((), (), (), False, most_connections))
    try:
        control, me = Control(guest), libp2p_id(identity.peer)
        async with asyncio.timeout(_PROBE_S):
            await control.connect(me, own, _PROBE_S)
            return await control.relay_limit(me, _PROBE_S) == CIRCUIT_BYTES
    except (TimeoutError, OSError, EOFError, DaemonError):
        return False
    finally:
        await guest.stop()
