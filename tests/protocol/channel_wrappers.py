"""Wrappers around a member's channel: everything goes through to the channel inside, but for what a test changes."""

from collections.abc import Callable
from typing import Any, cast

from troth.crypto import Slot
from troth.protocol.core.channel import AttemptView, Channel, ForwardingChannel, Said
from troth.protocol.wire.messages import Message

Change = Callable[[Slot, Message], Message | None]  # what is announced in place of this; None is silence


class AlteringChannel(ForwardingChannel):
    """Changes messages before they are announced."""

    def __init__(self, inner: Channel, change: Change) -> None:
        super().__init__(inner)
        self._change = change

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        changed = self._change(slot, message)
        if changed is not None:
            return await self._inner.announce(slot, changed, view)
        silent: Said = await cast(Any, self._inner).announce_last(slot, lambda _: None, view)
        return silent


def silent_in(steps: tuple[int, ...], kind: type[Message]) -> Change:
    """A change that keeps back all messages of this kind in these steps."""
    return lambda slot, message: None if isinstance(message, kind) and slot.step in steps else message
