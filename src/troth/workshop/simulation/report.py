"""Reports of a simulation, after every step, and the events that watchers read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

import msgspec

from troth.crypto import PeerId
from troth.events.from_step import began_by, event_of_outcome, known_peers
from troth.events.kinds import Began, Stepped
from troth.protocol.core.run import Run
from troth.protocol.core.state import Outcome
from troth.workshop.simulation.scenario import Scenario


@dataclass(frozen=True)
class SimulatedBan:
    """Ban of a peer, by its number in this simulation."""

    peer: int
    step: int
    reason: str
    evidence: str  # name of the file that proves it


@dataclass(frozen=True)
class StepReport:
    """`metrics` only where the model was evaluated; `guarantee` and `bans` only where there is a protocol."""

    step: int  # updates made so far
    loss: float  # mean over the honest peers' batches
    attacked: bool
    alive: int
    metrics: dict[str, float] | None
    bans: tuple[SimulatedBan, ...] = ()
    absent: tuple[int, ...] = ()  # peers that left the roster in this step without a ban
    guarantee: int | None = None  # number of liars there may still be
    moved: bool = True  # whether the model moved
    notes: tuple[str, ...] = ()  # what went wrong, and what happened at the door, in words
    probation: tuple[tuple[int, int], ...] = ()  # candidates, and how many steps they have worked
    events: tuple[Stepped, ...] = ()  # of this step; and of the closing one, with the last

    def told(self, run: Run, of: int, outcomes: Sequence[Outcome[Any]], numbers: Mapping[PeerId, int]) -> "StepReport":
        """This report with the events of these steps, of which the first is the one it is about."""
        names = {peer: f"peer{number}" for peer, number in numbers.items()}
        first, *others = (event_of_outcome(run, outcome, lambda peer: names[peer], of=of) for outcome in outcomes)
        return replace(self, events=(self.event(first), *others))

    def event(self, plain: Stepped) -> Stepped:
        """The event of this step, with what only a simulation knows."""
        loss = None if isnan(self.loss) else self.loss
        known = {"loss": loss, "metrics": self.metrics or {}, "attacked": self.attacked, "news": self.notes}
        return msgspec.structs.replace(plain, **known)


def began(scenario: Scenario, run: Run, numbers: Mapping[PeerId, int], liars: frozenset[int]) -> Began:
    """The beginning of a run of the protocol. Strangers are named too: in a simulation it is known who will come."""
    by_number = sorted(numbers, key=lambda peer: numbers[peer])
    lying = [peer for peer in by_number if numbers[peer] in liars]
    known = known_peers(by_number, lambda peer: f"peer{numbers[peer]}", lying)
    peers = tuple(msgspec.structs.replace(one, founder=k < scenario.peers) for k, one in enumerate(known))
    told = began_by(run, "simulation", scenario.total_steps, peers)
    return msgspec.structs.replace(told, task=str(scenario.config()["task"]), defence=scenario.defence_name)
