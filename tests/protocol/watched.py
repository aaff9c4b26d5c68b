"""Runs in which some members say something else than their own code would, and in which every member's outcome is kept."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from tests.protocol.small_runs import SMALL, rewired
from troth.crypto import PeerId, Slot
from troth.protocol.core.state import Outcome
from troth.protocol.wire.messages import Message
from troth.simulation import ProtocolSimulation, Scenario
from troth.training.work import Training

Change = Callable[[Slot, Message], Message | None]  # None is silence

CALM = dataclasses.replace(SMALL, byzantine=0, steps=6, evaluate_every=6)


class Saying:
    """Wraps a channel: what it announces is changed on the way out."""

    def __init__(self, inner: Any, change: Change) -> None:
        self._inner, self._change = inner, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def announce(self, slot: Slot, message: Message) -> Any:
        changed = self._change(slot, message)
        if changed is None:
            return await self._inner.announce_last(slot, lambda _: None)
        return await self._inner.announce(slot, changed)


class Watched(ProtocolSimulation):
    """Keeps what each member made of each step."""

    def __init__(self, scenario: Scenario = CALM) -> None:
        super().__init__(scenario)
        self.outcomes: list[dict[PeerId, Outcome[Training]]] = []

    def _step(self, run: Any) -> dict[PeerId, Outcome[Training]]:
        self.outcomes.append(super()._step(run))
        return self.outcomes[-1]

    def bend(self, peers: Iterable[PeerId], change: Change) -> "Watched":
        for peer in peers:
            rewired(self, peer, lambda channel: Saying(channel, change))
        return self

    def play(self) -> "Watched":
        for _ in self.steps():
            pass
        return self
