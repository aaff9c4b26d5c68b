"""`troth.testing`: its checks find what they are for, and pass what is right."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import troth
from tests.api.test_simulate import Plane, Shout
from troth.training import Batch
from troth.workshop.attacks import GradientAttack


@dataclass(frozen=True)
class Impure(Plane):
    """draws from the global generator"""

    def batch(self, draw: troth.Stream) -> Batch:
        return {**super().batch(draw), "y": torch.rand(8, 1)}


def test_a_task_that_is_no_function_of_its_seed_is_found() -> None:
    troth.testing.check_task(Plane())
    with pytest.raises(troth.TaskError):
        troth.testing.check_task(Impure())
    with pytest.raises(troth.TaskError, match=r"`task` is a name or a Task, .*: troth.task\(model=…, data=…, loss=…\)"):
        troth.testing.check_task(torch.nn.Linear)  # type: ignore[arg-type]


def _in_place(vectors_PD: Tensor) -> Tensor:
    vectors_PD -= vectors_PD.mean(dim=0)
    return vectors_PD[0]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda vectors_PD: vectors_PD, "turns 8×64 into"),
        (lambda vectors_PD: vectors_PD.mean(dim=0).tolist(), "returns list"),
        (lambda vectors_PD: vectors_PD.double().mean(dim=0), r"turns torch\.float32 into torch\.float64"),
        (lambda vectors_PD: vectors_PD.mean(dim=0) / 0, "into something that is not"),
        (_in_place, "changes its input in place"),
        (lambda vectors_PD: vectors_PD.mean(dim=0) + torch.rand(1), "other bits for the same vectors"),
        (lambda vectors_PD: vectors_PD[0], "depends on the order"),
        (lambda vectors_PD: vectors_PD.sum(dim=0), "equal vectors do not give that vector"),
        (troth.rules.mean, "2 liars at 100 times the honest mean move the result"),
    ],
)
def test_a_rule_that_breaks_its_contract_is_found(rule: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        troth.testing.check_rule(rule, byzantine=2)


@pytest.mark.parametrize("name", ["median", "geometric_median"])
def test_robust_rules_pass(name: str) -> None:
    troth.testing.check_rule(getattr(troth.rules, name), peers=9, byzantine=3)
    troth.testing.check_rule(lambda vectors_PD: troth.rules.krum(vectors_PD, byzantine=2), byzantine=2)
    troth.testing.check_rule(troth.rules.mean)


class Noisy(GradientAttack):
    """lies by chance"""

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        return torch.rand_like(own_BD)


class Short(GradientAttack):
    """sends too little"""

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        return own_BD[:, 1:]


class Spoiler(GradientAttack):
    """writes into what is not its own"""

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        return honest_HD.mul_(2)[: len(own_BD)]


@pytest.mark.parametrize(
    ("attack", "message"),
    [(Noisy(), "other lies for the same seed"), (Short(), "forge.. turns"), (Spoiler(), "changes its input in place")],
)
def test_an_attack_that_breaks_its_contract_is_found(attack: GradientAttack, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        troth.testing.check_attack(attack, task=Plane())


def test_an_attack_that_keeps_it_passes() -> None:
    troth.testing.check_attack(Shout(), task=Plane())
