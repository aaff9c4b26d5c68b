"""Honest peers whose machines stop: each at one moment of one step, for a while or for good."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from troth.crypto import PeerId, Seed, Slot, stream
from troth.protocol.core.channel import AttemptView, Channel, Exchange, ForwardingChannel, Said
from troth.protocol.core.errors import CannotGoOnError
from troth.protocol.wire.messages import Message

_CALLS = 8  # a quiet step has seven calls of the channel, one with a trial nine: every phase and what is between them


class PowerCutError(CannotGoOnError):
    """The machine stopped."""


@dataclass(frozen=True)
class DropOut:
    """The peer stops with its `call`-th call of the channel in this step, or with its first call afterwards."""

    step: int
    call: int
    down: float | None = None  # for so many seconds; None is for good
    journal: bool = True  # whether it still knows afterwards what it signed
    amid: float = 0.0  # so many seconds after the call began; 0 is just before


def draw_drop_outs(seed: Seed, candidates: Sequence[PeerId], count: int, steps: int) -> dict[PeerId, DropOut]:
    """So many of them, each at a random moment."""
    draw = stream(seed, "drop-outs")
    chosen = [candidates[k] for k in draw.sample(len(candidates), count)]
    return {peer: DropOut(int(draw.integers(steps, 1)[0]), int(draw.integers(_CALLS, 1)[0])) for peer in chosen}


class DroppingChannel(ForwardingChannel):
    """A channel until the power goes: at once, or as `soon` sees to, which is told in how many seconds."""

    def __init__(self, channel: Channel, drop_out: DropOut, soon: Callable[[float], None] | None = None) -> None:
        super().__init__(channel)
        self.drop_out = drop_out
        self._soon = soon
        self._step = self._calls = -1

    def _count(self, slot: Slot) -> None:
        self._calls = self._calls + 1 if slot.step == self._step else 0
        self._step = slot.step
        if (self._step, self._calls) < (self.drop_out.step, self.drop_out.call):
            return
        if self._soon is None or not self.drop_out.amid:
            raise PowerCutError(f"stopped in step {self._step}")
        self._soon(self.drop_out.amid)

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        self._count(slot)
        return await super().announce(slot, message, view)

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        self._count(slot)
        return await super().exchange(slot, blobs, view)
