"""Finding each other in the DHT: joining it, publishing our own addresses, looking up those of others."""

import asyncio
import time
from contextlib import suppress
from statistics import median

from troth.crypto.identity import PeerId
from troth.network.transport.base import ListenError, UnreachableError
from troth.network.transport.libp2p.control import DaemonError
from troth.network.transport.libp2p.multiaddr import libp2p_id
from troth.network.transport.libp2p.node import Libp2pNode
from troth.network.transport.libp2p.peer_record import (
    LASTS_S,
    decode_peer_record,
    dht_key,
    encode_peer_record,
    worth_telling,
)
from troth.network.transport.libp2p.relays import circuits

_LOOKUP_S = 8.0
_REJOIN_S = 3.0  # after which initial peers are tried again, when none has answered
_REPUBLISH_S = LASTS_S / 4
_MOST_CLOCK_OFF_S = LASTS_S / 2  # with more, records may seem to be over when they are made
FRESH_S = LASTS_S - _REPUBLISH_S - 30.0  # the newest record of a peer lasts at least this long


class Discovery:
    """One node's place in the DHT: a new one whenever the daemon is started again."""

    def __init__(self, node: Libp2pNode) -> None:
        self.node = node
        self._setup = node.setup
        self._publish_at = 0.0
        self._join_at = 0.0
        self._alone = True  # no initial peer has answered
        self._clocks_off: dict[str, float] = {}  # seconds by which our clock is ahead of initial peers'
        self.published: tuple[str, ...] = ()  # our addresses, as last published

    async def publish(self) -> None:
        """Publish our addresses, when they change and before the record ends, if we are of those whose records are kept."""
        setup = self._setup
        through_relays = circuits(setup.relays, self.node.daemon)
        addresses = worth_telling([*through_relays, *await self.node.own_addresses()])
        if addresses == self.published and time.monotonic() < self._publish_at:
            return
        self.published, self._publish_at = addresses, time.monotonic() + _REPUBLISH_S
        if addresses and not (setup.keeper.keeps(setup.local.identity.peer) and await self._store(addresses)):
            self._publish_at = 0.0

    async def _store(self, addresses: tuple[str, ...]) -> bool:
        setup, until = self._setup, time.time() + LASTS_S
        record = encode_peer_record(setup.local.identity, setup.local.run, until, addresses)
        return bool(await self.node.dht.store(dht_key(setup.local.run, setup.local.identity.peer), record, until))

    async def join_when_due(self) -> None:
        if time.monotonic() >= self._join_at:
            await self.join()

    async def join(self) -> None:
        """Connect to the initial peers, which know the others. If none answers, they are asked again soon."""
        met = await asyncio.gather(*map(self._meet, self._setup.initial_peers))
        if met and not any(met):
            self._setup.warn("join", "", "none of the initial peers answers; trying again")
            self._alone, self._join_at = True, time.monotonic() + _REJOIN_S
            return
        self._join_at = time.monotonic() + _REPUBLISH_S
        if self._alone:
            self._alone, self._publish_at = (
                False,
                0.0,
            )  # a record that was published while alone has to reach the others

    async def _meet(self, address: str) -> bool:
        where, _, name = address.rpartition("/p2p/")
        other = self._setup.hivemind.PeerID.from_base58(name)
        if other.to_bytes() == libp2p_id(self._setup.local.identity.peer):
            return True
        with suppress(TimeoutError, OSError, EOFError, DaemonError):
            async with asyncio.timeout(self._setup.local.limits.handshake_s):
                await self.node.control.connect(other.to_bytes(), [where], self._setup.local.limits.handshake_s)
            met = await self.node.dht.protocol.call_ping(other) is not None
            asked = time.time()
            if met and (theirs := await self.node.clock_of(other)) is not None:
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
        setup = self._setup
        key = dht_key(setup.local.run, peer)
        setup.keeper.wanted.add(peer)
        try:
            async with asyncio.timeout(_LOOKUP_S):
                found = (await self.node.dht.get_many([key], sufficient_expiration_time=sufficient))[key]
        except TimeoutError as error:
            raise UnreachableError(f"the DHT did not answer within {_LOOKUP_S:g} s") from error
        finally:
            setup.keeper.wanted.discard(peer)
        raw = found.value if found is not None else None
        record = decode_peer_record(raw, setup.local.run, time.time()) if isinstance(raw, bytes) else None
        if record is None or record.peer != peer:
            raise UnreachableError(f"nobody in the DHT knows where {peer.hex()[:16]} is")
        return record.addresses
