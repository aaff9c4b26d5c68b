"""Data of every peer's own: the trusted server's peers have it, and the protocol's do not."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from troth.crypto import Stream
from troth.training import Batch, Model, Task
from troth.workshop.simulation import ProtocolSimulation, Scenario, ServerSimulation, simulate


@dataclass(frozen=True)
class Targets(Task):
    """Every honest peer pulls one coordinate of its own towards 1; a liar, and whoever has public data, coordinate 7."""

    coordinate: int = 7

    def shard(self, peer: int, peers: int, honest: Sequence[int]) -> Task:
        assert peers == 6
        return Targets(list(honest).index(peer)) if peer in honest else self

    def model(self) -> nn.Module:
        module = nn.Linear(8, 1, bias=False)
        nn.init.zeros_(module.weight)
        return module

    def batch(self, draw: Stream) -> Batch:
        return {"x": torch.eye(8)[self.coordinate] * (1 + float(draw.uniform(1)[0]))}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        loss: Tensor = (model(batch["x"]) - 1).square().mean()
        return loss


def scenario(defence: str, byzantine: int = 2) -> Scenario:
    return Scenario(
        task=Targets(),
        peers=6,
        byzantine=byzantine,
        attack="delayed-gradient",
        attack_start=0,
        defence=defence,
        steps=1,
        rate=1.0,
        optimizer="sgd:momentum=0,nesterov=false",
        tau=1000.0,
        beyond_guarantee=True,
    )


def moved(run: ServerSimulation | ProtocolSimulation) -> list[int]:
    """Coordinates that a step has changed."""
    list(run.steps())
    parameters_D: Tensor = run.parameters_D
    return parameters_D.nonzero().flatten().tolist()


def test_the_servers_peers_draw_from_their_shards() -> None:
    assert moved(ServerSimulation(scenario("mean"))) == [0, 1, 2, 3, 7]
    assert moved(ServerSimulation(scenario("mean", byzantine=0))) == [0, 1, 2, 3, 4, 5]


def test_the_protocol_draws_from_public_data() -> None:
    assert moved(ProtocolSimulation(scenario("troth", byzantine=0))) == [7]


def test_a_run_of_the_protocol_says_that_it_uses_no_shards() -> None:
    def unused(options: Scenario) -> bool:
        return "unused_shards" in simulate(options).summary.details

    assert unused(scenario("troth"))
    assert not unused(scenario("mean"))
    assert not unused(dataclasses.replace(scenario("troth"), task="quadratic:dimension=8"))
