"""One liar, one lie of 1 % of a gradient where honest gradients are zero: what it moves, in a run of the protocol [U7]."""

from dataclasses import dataclass, replace
from statistics import median

import pytest
import torch
from torch import Tensor

from tests.protocol.replay import replay
from troth.clip.exact import exact_norm
from troth.crypto import derive
from troth.protocol.core.records import StepRecord, decode_record
from troth.protocol.wire.primitives import Primitives
from troth.training.optimizers import AdamW
from troth.training.task import Batch, Model
from troth.training.tasks.synthetic import Quadratic
from troth.training.work import TrainingWork
from troth.workshop.attacks.base import GradientAttack
from troth.workshop.simulation import ProtocolSimulation, Scenario

LIVE, DARK, FIRST = 20, 380, 20
WITHOUT_FLOORS = ",floor=0,model_floor=0"


@dataclass(frozen=True)
class HalfDark(Quadratic):
    """a bowl of which the last coordinates do not matter"""

    dimension: int = LIVE + DARK

    def loss(self, model: Model, batch: Batch) -> Tensor:
        x_D = model()
        return super().loss(lambda: torch.cat([x_D[:LIVE], x_D[LIVE:].detach()]), batch)


@dataclass(frozen=True)
class Dark(GradientAttack):
    """add 1 % of the own length where no honest gradient is"""

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        lie_D = (honest_HD == 0).all(dim=0).float()
        assert int(lie_D.sum()) == DARK
        forged_BD: Tensor = own_BD + 0.01 * own_BD.norm(dim=1, keepdim=True) * lie_D / lie_D.norm()
        return forged_BD


SCENARIO = Scenario(
    task=HalfDark(), peers=7, byzantine=1, attack=Dark(), attack_start=FIRST, attack_stop=FIRST + 1, steps=30,
    evaluate_every=30, rate=0.01, schedule="constant", seed=3,
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What a run left: records, and the change of the model in each step, of all coordinates and of the dark ones."""

    simulation: ProtocolSimulation
    records: list[StepRecord]
    changes: list[float]
    dark: list[float]

    @property
    def usual(self) -> float:
        return median(self.changes[:FIRST])


def run(optimizer: str) -> Run:
    simulation = ProtocolSimulation(replace(SCENARIO, optimizer=optimizer), prove=False)
    changes, dark, before_D = list[float](), list[float](), simulation.parameters_D.clone()
    for _ in simulation.steps():
        changes.append(exact_norm(simulation.parameters_D - before_D))
        dark.append(exact_norm((simulation.parameters_D - before_D)[LIVE:]))
        before_D = simulation.parameters_D.clone()
    return Run(simulation, [decode_record(raw) for raw in simulation.trace], changes, dark)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adamw:weight_decay=0", "lamb:weight_decay=0", "sgd"])
def test_a_small_lie_where_no_gradient_is_moves_next_to_nothing(optimizer: str) -> None:
    """[U7] Under AdamW and LAMB as under SGD; all steps after it taken together."""
    found = run(optimizer)
    assert found.simulation.attacked_steps == 1
    assert 0 < sum(found.dark[FIRST:]) < 0.2 * found.usual
    assert {record.shortened for record in found.records} == {1.0}


def test_without_floors_no_step_is_longer_than_twice_the_usual() -> None:
    """[U7] The second line, whatever an optimizer divides by: all members agree on it, and so does whoever replays records."""
    found = run("adamw:weight_decay=0" + WITHOUT_FLOORS)
    assert found.changes[FIRST] == pytest.approx(2 * sorted(found.changes[:FIRST])[FIRST // 2 - 1], rel=1e-4)
    shortened = [record.shortened for record in found.records]
    assert shortened[:FIRST] == [1.0] * FIRST
    assert 0 < shortened[FIRST] < 0.5
    simulation, scenario = found.simulation, found.simulation.scenario
    ends = [simulation.states[peer] for peer in simulation.honest]
    assert len({state.model for state in ends}) == 1
    assert len({state.training.optimizer["lengths"].numpy().tobytes() for state in ends}) == 1
    work = TrainingWork(
        simulation.problem, AdamW(weight_decay=0, floor=0, model_floor=0), scenario.rates(), Primitives()
    )
    served = replay(simulation.run, work, work.first(derive(scenario.seed, "model")), found.records[:FIRST])
    assert work.digest(served) == found.records[FIRST].state_before
