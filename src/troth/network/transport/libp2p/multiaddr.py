"""libp2p's addresses and names, as far as Troth uses them: TCP, directly or through one relay, to an Ed25519 key.

hivemind reads addresses well, but writes those with a peer in them in a form that its own daemon does not read; so they
are written here.
"""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from troth.crypto.identity import PeerId

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
