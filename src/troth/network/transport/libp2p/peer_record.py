"""A peer's own record of its addresses: peers keep these for each other in the DHT.

Anybody can write into a DHT, so a record has to prove itself: it is signed by the key that it is about, for one run, and
names its own end. Nothing else is kept, passed on or believed. Old records can be replayed until they end, and attackers that
crowd around a key can hide its record: a lookup that fails proves nothing, and a record that is found only says where to dial.

    signature (64 bytes)   peer (32)   until (8: Unix time, a double)   addresses, one per line (ASCII)
"""

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

import msgspec

from troth.crypto import Digest, Identity, PeerId, tagged_hash, verify
from troth.network.transport.libp2p.multiaddr import MOST_ADDRESS_BYTES, dialable

MOST_ADDRESSES = 8
LASTS_S = 300.0  # that we publish
LONGEST_S = 2 * LASTS_S  # that we believe: clocks differ, but nobody may book a place for ever
MOST_RECORDS = 4096  # kept for others

_HEAD = struct.Struct("!64s32sd")
_MOST_BYTES = _HEAD.size + MOST_ADDRESSES * (MOST_ADDRESS_BYTES + 1)


@dataclass(frozen=True)
class PeerRecord:
    """A record whose signature was checked."""

    peer: PeerId
    until: float  # Unix time
    addresses: tuple[str, ...]  # multiaddrs, without the peer itself at their end


def worth_telling(addresses: Sequence[str]) -> tuple[str, ...]:
    """Our addresses that others may use: not loopback, unless there is nothing else (a swarm on one machine)."""
    usable = [address for address in dict.fromkeys(addresses) if dialable(address)]
    abroad = [one for one in usable if "/p2p-circuit" in one or not one.startswith(("/ip4/127.", "/ip6/::1/"))]
    return tuple((abroad or usable)[:MOST_ADDRESSES])


def dht_key(run: Digest, peer: PeerId) -> bytes:
    return tagged_hash("troth/whereabouts-key/1", run, peer)


def encode_peer_record(identity: Identity, run: Digest, until: float, addresses: Sequence[str]) -> bytes:
    said = _said(identity.peer, until, "\n".join(addresses).encode("ascii"))
    return identity.sign(_signed(run, said)) + said


def decode_peer_record(raw: bytes, run: Digest, now: float) -> PeerRecord | None:
    """None if it proves nothing: malformed, over, too far ahead, or not signed by the key that it is about."""
    if not _HEAD.size <= len(raw) <= _MOST_BYTES:
        return None
    signature, key, until = _HEAD.unpack_from(raw)
    peer = PeerId(key)
    lines = raw[_HEAD.size :]
    if not (isfinite(until) and now < until <= now + LONGEST_S) or not lines.isascii():
        return None
    addresses = tuple(lines.decode("ascii").split("\n"))
    if len(addresses) > MOST_ADDRESSES or not all(map(dialable, addresses)):
        return None
    if not verify(peer, _signed(run, raw[64:]), signature):
        return None
    return PeerRecord(peer, until, addresses)


def _said(peer: PeerId, until: float, lines: bytes) -> bytes:
    return peer + struct.pack("!d", until) + lines


def _signed(run: Digest, said: bytes) -> bytes:
    return tagged_hash("troth/whereabouts/1", run, said)


class DhtRecord(Protocol):
    """A record as hivemind hands it to a validator."""

    @property
    def key(self) -> bytes: ...
    @property
    def subkey(self) -> bytes: ...
    @property
    def value(self) -> bytes: ...
    @property
    def expiration_time(self) -> float: ...


class Keeper:
    """Decides which records our DHT node keeps for others and believes from others: hivemind asks it about every one.

    One record for each peer, of bounded size and time, and only for peers that `keeps` names: else anybody could fill
    our memory, as the store itself has no bound.
    """

    priority = 0

    def __init__(self, run: Digest, keeps: Callable[[PeerId], bool], now: Callable[[], float]) -> None:
        self.wanted: set[PeerId] = set()  # that we look up at the moment
        self.keeps = keeps
        self._run = run
        self._now = now
        self._kept: dict[bytes, float] = {}  # until when

    def validate(self, record: DhtRecord) -> bool:
        where = self._read(record)
        if where is None:
            return False
        if where.peer in self.wanted:
            return True
        return self.keeps(where.peer) and self._has_place(record.key, where.until)

    def sign_value(self, record: DhtRecord) -> bytes:
        return record.value  # it is signed already

    def strip_value(self, record: DhtRecord) -> bytes:
        return record.value

    def _read(self, record: DhtRecord) -> PeerRecord | None:
        if len(record.value) > _MOST_BYTES + 5 or record.subkey != _NO_SUBKEY:
            return None
        try:
            raw = msgspec.msgpack.decode(record.value, type=bytes)
        except (msgspec.DecodeError, RecursionError):
            return None
        where = decode_peer_record(raw, self._run, self._now())
        if where is None or where.until != record.expiration_time:  # else a stranger could make it last
            return None
        return where if dht_id(dht_key(self._run, where.peer)) == record.key else None

    def _has_place(self, key: bytes, until: float) -> bool:
        if key not in self._kept and len(self._kept) >= MOST_RECORDS:
            now = self._now()
            self._kept = {one: end for one, end in self._kept.items() if end > now}
            if len(self._kept) >= MOST_RECORDS:
                return False
        self._kept[key] = max(until, self._kept.get(key, 0.0))
        return True


_NO_SUBKEY = msgspec.msgpack.encode(None)


def dht_id(key: bytes) -> bytes:
    """The name of a key inside hivemind. SHA-1 is weak against collisions of one's own making only, and those win nothing."""
    return hashlib.sha1(key, usedforsecurity=False).digest()
