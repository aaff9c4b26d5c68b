"""Damage: to bytes as they are, to the tree that they encode, and to trees of JSON."""

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

# Headers of arrays, maps, strings, bytes and extensions of up to 4 GiB that MessagePack announces and then does not send.
HEADERS = (
    *(bytes([kind]) + b"\xff" * size for kind, size in ((0xDC, 2), (0xDD, 4), (0xDE, 2), (0xDF, 4))),
    *(bytes([kind]) + b"\xff" * size for kind, size in ((0xD9, 1), (0xDA, 2), (0xDB, 4))),
    *(
        bytes([kind]) + b"\xff" * size
        for kind, size in ((0xC4, 1), (0xC5, 2), (0xC6, 4), (0xC7, 1), (0xC8, 2), (0xC9, 4))
    ),
    b"\xdd\x00\x10\x00\x00",
    b"\xc6\x00\x10\x00\x00",
    b"\xc1",  # never used
    b"\xcf" + b"\xff" * 8,  # 2⁶⁴ − 1
    b"\xd3\x80" + bytes(7),  # −2⁶³
    b"\xcb\x7f\xf8" + bytes(6),  # NaN
    b"\xca\x7f\x80\x00\x00",  # ∞
    b"\xd6\xff" + bytes(4),  # a timestamp
)
ATOMS: tuple[Any, ...] = (
    *(None, False, True, 0, 1, -1, 255, 1023, 1024, 2**16, 2**31, 2**32, 2**62 - 1, 2**62, 2**63, 2**64 - 1, -(2**63)),
    *(0.0, -0.0, 1.0, 1e308, math.inf, -math.inf, math.nan),
    *("", "Value", "value", "Chained", "x" * 300),
    *(b"", bytes(31), bytes(32), b"\xff" * 32, bytes(33), bytes(63), bytes(64), bytes(65), bytes(5000)),
    *([], {}, [[]], [None] * 2000, {k: k for k in range(1100)}, ["Value"], ["Busy", 7]),
    msgspec.msgpack.Ext(1, b""),
    msgspec.msgpack.Ext(-1, bytes(8)),
)
JSON_ATOMS: tuple[Any, ...] = (
    *(None, False, True, 0, 1, -1, 2**63, 2**64, -(2**70), 10**4000, 0.0, 1e308, math.inf, math.nan),
    *(
        "",
        "0",
        "00",
        "zz",
        "\ud800",
        "é",
        "0x1p99999",
        "nan",
        "0" * 64,
        "f" * 64,
        "0" * 63,
        "0" * 66,
        "0" * 128,
        "F" * 64,
    ),
    *([], {}, [[]], [None] * 300, {"": ""}, {str(k): "" for k in range(300)}),
)


def damaged(raw: bytes, random: Random, others: Sequence[bytes] = ()) -> bytes:
    """One to four wounds: bits, bytes and stretches changed, put in, left out, doubled, cut off, or somebody else's."""
    out = bytearray(raw)
    for _ in range(random.choice((1, 1, 2, 4))):
        random.choice(_WOUNDS)(out, random)
    if others and random.random() < 0.1:
        other = random.choice(others)
        out[random.randint(0, len(out)) :] = other[random.randint(0, len(other)) :]
    return bytes(out)


def _flip(out: bytearray, random: Random) -> None:
    if out:
        out[random.randrange(len(out))] ^= 1 << random.randrange(8)


def _set(out: bytearray, random: Random) -> None:
    if out:
        out[random.randrange(len(out))] = random.choice(
            (0x00, 0x7F, 0x80, 0x90, 0x9F, 0xC0, 0xFF, random.randrange(256))
        )


def _put_in(out: bytearray, random: Random) -> None:
    where = random.randint(0, len(out))
    out[where:where] = random.randbytes(random.choice((1, 1, 2, 8, 64)))


def _leave_out(out: bytearray, random: Random) -> None:
    where = random.randint(0, len(out))
    del out[where : where + random.choice((1, 1, 2, 8, 64))]


def _double(out: bytearray, random: Random) -> None:
    where, size = random.randint(0, len(out)), random.choice((1, 4, 32, 200))
    out[where:where] = out[where : where + size] * random.choice((1, 1, 20))


def _cut_off(out: bytearray, random: Random) -> None:
    del out[random.randint(0, len(out)) :]


def _announce(out: bytearray, random: Random) -> None:
    where, header = random.randint(0, len(out)), random.choice(HEADERS)
    out[where : where + random.choice((0, 1, len(header)))] = header


def _nest(out: bytearray, random: Random) -> None:
    where = random.randint(0, len(out))
    out[where:where] = random.choice((b"\x91", b"\x81\xc0", b"\x81", b"[", b'{"":')) * random.choice((2, 600, 3000))


_WOUNDS: tuple[Callable[[bytearray, Random], None], ...] = (
    *(_flip, _flip, _flip, _set, _set, _set, _put_in, _put_in, _leave_out, _leave_out),
    *(_double, _cut_off, _announce, _announce, _nest),
)


def altered(raw: bytes, random: Random) -> bytes:
    """The same MessagePack with one or two values exchanged, left out, doubled or of another kind."""
    return msgspec.msgpack.encode(altered_tree(msgspec.msgpack.decode(raw), random, ATOMS))


def altered_tree(tree: Any, random: Random, atoms: Sequence[Any]) -> Any:
    """Change the tree, in place where that is possible, and return it."""
    holder = [tree]
    for _ in range(random.choice((1, 1, 2))):
        slots = _places(holder)
        container, key = random.choice(slots)
        match random.randrange(8):
            case 0 | 1:
                container[key] = _copied(random.choice(atoms))
            case 2 if container is not holder:
                del container[key]
            case 3 if isinstance(container, list) and container is not holder:
                many = 1500 if len(slots) < 50 else 3  # but not many times many
                container[key:key] = [container[key]] * random.choice((1, 1, 2, many))
            case 4:
                other, there = random.choice(slots)
                if there in other if isinstance(other, dict) else there < len(other):
                    container[key] = _copied(other[there])
            case 5:
                container[key] = [container[key]]
            case 6 if isinstance(container, dict):
                more = ("", "extra") if isinstance(key, str) else ("", 0, b"", bytes(32))
                container[random.choice(more)] = container[key]
            case _:
                container[key] = _nudged(container[key], random)
    return holder[0]


def _places(holder: list[Any]) -> list[tuple[Any, Any]]:
    """Every place in the tree that holds a value, up to some thousands: as container and key."""
    found: list[tuple[Any, Any]] = []
    open_ends: list[Any] = [holder]
    while open_ends and len(found) < 5000:
        container = open_ends.pop()
        for key, value in enumerate(container) if isinstance(container, list) else container.items():
            found.append((container, key))
            if isinstance(value, list | dict):
                open_ends.append(value)
    return found


def _copied(value: Any) -> Any:
    """Deep, as a tree must not contain itself."""
    match value:
        case list():
            return [_copied(item) for item in value]
        case dict():
            return {key: _copied(item) for key, item in value.items()}
        case _:
            return value


def _nudged(value: Any, random: Random) -> Any:
    """Nearly the same: such values get far."""
    match value:
        case bool():
            return not value
        case int():
            return max(
                -(2**63), min(2**64 - 1, random.choice((value + 1, value - 1, value * 2, -value, value ^ 1 << 33)))
            )
        case float():
            return random.choice((-value, value * 2, value + 1, value * 1e300, math.nan))
        case bytes():
            return damaged(value, random)
        case str():
            where = random.randint(0, len(value))
            return value[:where] + random.choice(("", "0", "f", " ", "é")) + value[where + random.randint(0, 2) :]
        case list() if value:
            return random.choice((value[1:], value[:-1], value[::-1], value + value[:1]))
        case _:
            return random.choice((None, 0, [], ""))
