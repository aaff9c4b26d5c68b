"""Bytes from others that a channel holds, measured on the objects themselves and not by the channel's own account."""

from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any

import msgspec

from troth.crypto import PeerId
from troth.protocol.broadcast.link import PacketLink
from troth.protocol.wire.frames import Packet, encode_in_pieces

_BETWEEN = 1 << 17  # bytes that may come in between two measurements
_PLAIN = (str, int, float, NoneType)  # hold nothing
_OURS = "troth.protocol."
# Attributes of a channel that hold nothing from others.
_NOT_HELD = frozenset({"_identity", "signed_slots", "_link", "_tools", "_states", "bounds"})


def held_bytes(channel: object) -> int:
    """Bytes of all messages, frames and blobs reachable from the channel; each message counts once, with its encoded length."""
    total, seen, left = 0, set[int](), [channel]
    while left:  # a stack, since a world does this millions of times: generators in each other took twice as long
        value: Any = left.pop()
        if isinstance(value, bytes):
            total += len(value)
            continue
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, msgspec.Struct):
            total += len(msgspec.msgpack.encode(value))
        elif isinstance(value, list | tuple | set | frozenset):
            left.extend(value)
        elif isinstance(value, Mapping):
            left.extend(value.keys())
            left.extend(value.values())
        elif type(value).__module__.startswith(_OURS):
            left.extend(item for name, item in getattr(value, "__dict__", {}).items() if name not in _NOT_HELD)
    return total


class MeasuredLink:
    """A link that has its peer's memory measured whenever enough has come in, amid a step as well."""

    def __init__(self, link: PacketLink, measure: Callable[[], int]) -> None:
        self._link = link
        self._measure = measure
        self._received, self._between = 0, _BETWEEN
        self.now, self.send, self.gone = link.now, link.send, link.gone

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        # The more is held, the longer a measurement takes, and the less a little more matters.
        if self._received >= self._between:
            self._received, self._between = 0, max(_BETWEEN, self._measure() // 8)
        heard = await self._link.receive(until)
        if heard is not None:
            self._received += sum(map(len, encode_in_pieces(heard[1])))
        return heard
