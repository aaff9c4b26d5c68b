"""Runs in which some members announce something else than their own code would, and in which every member's outcome is kept."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from tests.protocol.channel_wrappers import AlteringChannel, Change
from tests.protocol.small_runs import SMALL, wrap_channel
from troth.crypto import PeerId
from troth.protocol.core.state import Outcome
from troth.protocol.step.step import run_step
from troth.training.work import Training
from troth.workshop.simulation import ProtocolSimulation, Scenario

CALM = dataclasses.replace(SMALL, byzantine=0, steps=6, evaluate_every=6)


class AlteredRun(ProtocolSimulation):
    """Keeps every member's outcome of every step, and lets tests alter what members announce."""

    def __init__(self, scenario: Scenario = CALM) -> None:
        super().__init__(scenario)
        self.outcomes: list[dict[PeerId, Outcome[Training]]] = []

    def _step(self, run: Any) -> dict[PeerId, Outcome[Training]]:
        self.outcomes.append(super()._step(run))
        return self.outcomes[-1]

    def alter(self, peers: Iterable[PeerId], change: Change) -> "AlteredRun":
        """Change what these members announce."""
        for peer in peers:
            wrap_channel(self, peer, lambda channel: AlteringChannel(channel, change))
        return self

    def one_step(self) -> object:
        """Take one step; None if the run cannot go on."""
        return self._look_at(self._step(run_step))

    def play(self) -> "AlteredRun":
        """Run to the end."""
        for _ in self.steps():
            pass
        return self
