"""Bytes from others that a channel holds, measured on the objects themselves and not by the channel's own account."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from troth.crypto import PeerId
from troth.protocol.broadcast.link import PacketLink
from troth.protocol.wire.frames import Packet, encode_in_pieces

_BETWEEN = 1 << 17  # bytes that may come in between two measurements
_OURS = "troth.protocol."
# Attributes of a channel that hold nothing from others.
_NOT_HELD = frozenset({"_identity", "signed_slots", "_link", "_tools", "_states", "bounds"})


def held_bytes(channel: object) -> int:
    """Bytes of all messages, frames and blobs reachable from the channel; each message counts once, with its encoded length."""
    return sum(_sizes(channel, set()))


def _sizes(value: Any, seen: set[int]) -> Iterator[int]:
    if isinstance(value, bytes):
        yield len(value)
    if isinstance(value, bytes | str | int | float | None) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, msgspec.Struct):
        yield len(msgspec.msgpack.encode(value))
    elif isinstance(value, Mapping):
        for key, item in list(value.items()):
            yield from _sizes(key, seen)
            yield from _sizes(item, seen)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _sizes(item, seen)
    elif type(value).__module__.startswith(_OURS):
        for name, item in getattr(value, "__dict__", {}).items():
            if name not in _NOT_HELD:
                yield from _sizes(item, seen)


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
