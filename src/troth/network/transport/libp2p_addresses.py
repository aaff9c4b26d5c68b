"""libp2p's addresses and names, as far as Troth uses them: TCP, directly or through one relay, to an Ed25519 key.

hivemind reads addresses well, but writes those with a peer in them in a form that its own daemon does not read; so they
are written here.
"""

import hashlib
import re
import struct
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from math import isfinite
from typing import Any, Protocol

import msgspec

from troth.crypto import Digest, Identity, PeerId, tagged_hash, verify
from troth.errors import OperatorError, how_to_install

MOST_ADDRESS_BYTES = 200

_ED25519 = bytes.fromhex("002408011220")  # an identity multihash of 36 bytes: a key of type 1, 32 bytes long
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_CODES = {"ip4": 4, "tcp": 6, "ip6": 41, "dns": 53, "dns4": 54, "dns6": 55, "p2p": 421, "p2p-circuit": 290}
# TCP only (the daemon's QUIC is old); nothing else is dialled because a stranger says so.
_ADDRESS = re.compile(
    r"/(?P<kind>ip4|ip6|dns|dns4|dns6)/(?P<host>[0-9A-Za-z.:_-]{1,120})/tcp/(?P<port>0|[1-9][0-9]{0,4})"
    r"(/p2p/(?P<relay>[1-9A-HJ-NP-Za-km-z]{20,80})/p2p-circuit)?"
)


def libp2p_id(peer: PeerId) -> bytes:
    """The libp2p peer id of a key. It holds the Ed25519 key itself, so a proof of the id is a proof of the key."""
    return _ED25519 + peer


def peer_of_libp2p(libp2p: bytes) -> PeerId | None:
    """The key in a libp2p peer id; None if it is of another kind."""
    if len(libp2p) != len(_ED25519) + 32 or not libp2p.startswith(_ED25519):
        return None
    return PeerId(libp2p[len(_ED25519) :])


def libp2p_name(peer: PeerId) -> str:
    """The peer id as people write it: 12D3Koo…"""
    raw = libp2p_id(peer)
    number, digits = int.from_bytes(raw, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        digits = _BASE58[digit] + digits
    return "1" * (len(raw) - len(raw.lstrip(b"\0"))) + digits


def id_of_name(name: str) -> bytes:
    """The peer id of a name, for any kind of key."""
    number = 0
    for digit in name:
        number = 58 * number + _BASE58.index(digit)
    zeros = len(name) - len(name.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")


def dialable(address: str) -> bool:
    """Whether we would dial this multiaddr."""
    found = _parsed(address)
    return found is not None and int(found["port"]) > 0


def listenable(address: str) -> bool:
    """Whether we could listen there; port 0 means any."""
    found = _parsed(address)
    return found is not None and found["relay"] is None and found["kind"] in ("ip4", "ip6")


def encode_multiaddr(address: str) -> bytes:
    found = _parsed(address)
    assert found is not None, address
    kind, host = found["kind"], found["host"]
    if kind == "ip4":
        where = IPv4Address(host).packed
    elif kind == "ip6":
        where = IPv6Address(host).packed
    else:
        where = _sized(host.encode("ascii"))
    encoded = encode_varint(_CODES[kind]) + where + encode_varint(_CODES["tcp"]) + int(found["port"]).to_bytes(2, "big")
    if found["relay"] is not None:
        encoded += (
            encode_varint(_CODES["p2p"]) + _sized(id_of_name(found["relay"])) + encode_varint(_CODES["p2p-circuit"])
        )
    return encoded


def _parsed(address: str) -> "re.Match[str] | None":
    found = _ADDRESS.fullmatch(address) if len(address) <= MOST_ADDRESS_BYTES else None
    if found is None or int(found["port"]) > 65535:
        return None
    try:
        if found["kind"] == "ip4":
            IPv4Address(found["host"])
        elif found["kind"] == "ip6":
            IPv6Address(found["host"])
    except AddressValueError:
        return None
    return found


def _sized(value: bytes) -> bytes:
    return encode_varint(len(value)) + value


def encode_varint(number: int) -> bytes:
    encoded = b""
    while number >= 0x80:
        encoded += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return encoded + bytes((number,))


# A peer's own record of its addresses: peers keep these for each other in the DHT.
#
# Anybody can write into a DHT, so a record has to prove itself: it is signed by the key that it is about, for one run, and
# names its own end. Nothing else is kept, passed on or believed. Old records can be replayed until they end, and attackers that
# crowd around a key can hide its record: a lookup that fails proves nothing, and a record that is found only says where to dial.
#
#     signature (64 bytes)   peer (32)   until (8: Unix time, a double)   addresses, one per line (ASCII)


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
    said = identity.peer + struct.pack("!d", until) + "\n".join(addresses).encode("ascii")
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


# The parts of hivemind that Troth uses, imported on demand: it takes seconds, and most peers do without it.


@dataclass(frozen=True)
class Hivemind:
    """Classes of hivemind, which has no types of its own."""

    P2P: Any
    PeerID: Any
    Multiaddr: Any
    DHTNode: Any
    daemon_error: type[Exception]


def load_hivemind() -> Hivemind:
    """Raises OperatorError where it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            p2p = import_module("hivemind.p2p")
            node = import_module("hivemind.dht.node")
            multiaddr = import_module("hivemind.utils.multiaddr")
    except ImportError as error:
        raise OperatorError(f"libp2p needs hivemind ({error}): {how_to_install('libp2p')}") from error
    return Hivemind(p2p.P2P, p2p.PeerID, multiaddr.Multiaddr, node.DHTNode, p2p.P2PDaemonError)
