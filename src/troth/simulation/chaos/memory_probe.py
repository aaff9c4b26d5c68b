"""How much of what others sent a channel holds, measured on the objects themselves and not by the channel's own account."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from troth.crypto import PeerId
from troth.protocol.broadcast.channel import PacketLink
from troth.protocol.wire.frames import Packet, encode_packet

_OFTEN = 1 << 17  # bytes that may come in before one looks again
_OURS = "troth.protocol."
_NOT_HELD = frozenset({"_identity", "_journal", "_line", "_tools", "_states", "bounds"})  # what is one's own


def held_bytes(channel: object) -> int:
    """Of all messages, frames and blobs that can be reached from it; each message counts once, as long as it would be encoded."""
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
    """A line that has its peer looked at whenever so much has come in, amid a step as well."""

    def __init__(self, link: PacketLink, look: Callable[[], int]) -> None:
        self._link = link
        self._look = look
        self._came, self._often = 0, _OFTEN
        self.now, self.send, self.gone = link.now, link.send, link.gone

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        if (
            self._came >= self._often
        ):  # the more is held, the longer it takes to look, and the less a little more matters
            self._came, self._often = 0, max(_OFTEN, self._look() // 8)
        heard = await self._link.receive(until)
        if heard is not None:
            self._came += len(encode_packet(heard[1]))
        return heard
