"""Scenarios: what they fill in and refuse."""

import dataclasses
from typing import Any

import pytest
import torch

from troth.errors import OperatorError
from troth.training import SCHEDULES, SGD, AdamW, make_task
from troth.training.optimizers import cosine, linear
from troth.workshop.simulation import Scenario


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peers": 0}, "`peers` must be at least 1, got 0"),
        ({"byzantine": 8}, "`byzantine` 8 is too many for 16 peers: .* so at most 7"),
        ({"byzantine": -1}, "`byzantine` .*-1"),
        ({"peers": 1, "byzantine": 1}, "`byzantine` "),
        ({"steps": 0}, "`steps` must be at least 1, got 0"),
        ({"evaluate_every": 0}, "`evaluate_every` must be at least 1, got 0"),
        ({"warmup": -1}, "`warmup` must be at least 0, got -1"),
        ({"tau": 0.0}, "`tau` must be a positive number, got 0"),
        ({"tau": -1.0}, "`tau` must be a positive number, got -1"),
        ({"tau": float("nan")}, "`tau` must be a positive number, got nan"),
        ({"tau": float("inf")}, "`tau` must be a positive number, got inf"),
        ({"rate": 0.0}, "`rate` must be a positive number, got 0"),
        ({"rate": float("inf")}, "`rate` must be a positive number, got inf"),
        ({"seed": 2**63}, "`seed` must fit in 64 bits, got 9223372036854775808"),
        ({"defence": "krom"}, "unknown defence 'krom': did you mean krum"),
        ({"defence": "krum", "peers": 2}, "`defence` krum cannot be used here: krum needs more than 2 rows"),
        ({"schedule": "cosin"}, "unknown schedule 'cosin': did you mean cosine\\?"),
        ({"optimizer": "sdg"}, "unknown optimizer 'sdg': did you mean sgd\\?"),
        ({"optimizer": "sgd:momentum=1"}, "'sgd:momentum=1': momentum must be from 0 to below 1"),
        ({"device": "tpu"}, "`device` is cpu or cuda, got 'tpu'"),
        ({"task": "digit"}, "unknown task 'digit': did you mean"),
        ({"attack": "sgn-flip"}, "unknown attack 'sgn-flip': did you mean"),
        ({"attack_start": -1}, "`attack_start` must not be negative, got -1"),
        ({"attack_every": 0}, "`attack_every` must be at least 1, got 0"),
        ({"attack_probability": 1.5}, "`attack_probability` must be above 0 and at most 1, got 1.5"),
        ({"attack_stop": 50}, "`attack_stop` must be after `attack_start`, got 50 and 50"),
        ({"byzantine": 1, "attack_start": 400}, "`attack_start` 400 is not before the end \\(400 steps\\)"),
        ({"byzantine": 1, "steps": 20}, "`attack_start` 50 is not before the end \\(20 steps\\): name an earlier one"),
        ({"byzantine": 1, "attack": "label-flip", "task": "quadratic"}, "label-flip needs a task with labels"),
        ({"byzantine": 1, "peers": 3, "attack": "sign-flip:scale=0"}, "'sign-flip:scale=0': scale must be a positive"),
        ({"byzantine": 1, "attack": "sign-flip + alie"}, "`attack` is given 2 times, for 1 liars"),
        ({"byzantine": 2, "attack": "sign-flip + alee"}, "unknown attack 'alee': did you mean alie"),
        ({"byzantine": 2, "attack": "alie + vanish"}, "`attack` alie \\+ vanish is an attack on the protocol"),
        ({"tau_auto": 0.3}, "`tau_auto`, `deviation` and `drop_outs` are the protocol's"),
        ({"deviation": 0.1}, "`tau_auto`, `deviation` and `drop_outs` are the protocol's"),
        ({"drop_outs": 1}, "`tau_auto`, `deviation` and `drop_outs` are the protocol's"),
        ({"defence": "troth", "tau_auto": 0.6}, "`tau_auto` must be at most 0.5"),
        ({"defence": "troth", "tau_auto": 0.0}, "`tau_auto` must be a positive number, got 0"),
        ({"defence": "troth", "deviation": 0.2}, "`deviation` must be below 0.2"),
        ({"defence": "troth", "deviation": float("nan")}, "`deviation` must be a positive number"),
        ({"defence": "troth", "drop_outs": -1}, "`drop_outs` must be at least 0, got -1"),
        ({"defence": "troth", "peers": 4, "byzantine": 1, "drop_outs": 3}, "`drop_outs` must leave an honest peer"),
    ],
    ids=str,
)
def test_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError, match=f"^{message}") as caught:
        Scenario(**{"defence": "centered-clip", **options})
    assert "\n" not in str(caught.value)


def test_cuda_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(OperatorError, match=r"^`device` cuda: PyTorch sees no CUDA device here; use `device` cpu$"):
        Scenario(device="cuda")


def test_without_liars_the_attack_need_not_fit() -> None:
    assert Scenario(steps=20, attack="label-flip", task="quadratic").attack_start == 50


@pytest.mark.parametrize(
    ("name", "steps", "rate", "tau"),
    [("digits", 400, 0.01, 1.0), ("digits-cnn", 300, 0.1, 1.0), ("quadratic", 300, 0.1, 0.1)],
)
def test_resolved_fills_in_the_tasks_suggestions(name: str, steps: int, rate: float, tau: float) -> None:
    resolved = Scenario(task=name).resolved(make_task(name))
    assert (resolved.steps, resolved.rate, resolved.tau) == (steps, rate, tau)


def test_resolved_keeps_what_was_asked_for() -> None:
    asked = Scenario(steps=7, rate=0.5, tau=2.0, optimizer="sgd", seed=4)
    assert asked.resolved(make_task("digits")) == asked
    partly = Scenario(tau=2.0, seed=4).resolved(make_task("digits"))
    assert partly == dataclasses.replace(asked, steps=400, rate=0.01, optimizer="adamw")


@pytest.mark.parametrize(("peers", "byzantine"), [(16, 7), (16, 3), (5, 2), (3, 0)])
def test_the_liars_are_drawn_from_the_seed(peers: int, byzantine: int) -> None:
    drawn = [
        Scenario(peers=peers, byzantine=byzantine, seed=seed, defence="mean").byzantine_peers() for seed in range(30)
    ]
    for liars in drawn:
        assert len(set(liars)) == len(liars) == byzantine
        assert liars == sorted(liars)
        assert set(liars) <= set(range(peers))
    assert drawn[0] == Scenario(peers=peers, byzantine=byzantine, defence="mean").byzantine_peers()
    if byzantine:
        assert set().union(*drawn) == set(range(peers)), "every peer is a liar for some seed"


def test_rates() -> None:
    assert Scenario(steps=10, rate=0.5).rates() == cosine(0.5, 10)
    assert Scenario(steps=10, rate=0.5, schedule="linear", warmup=2).rates() == (0.25, *linear(0.5, 10)[1:])


@pytest.mark.parametrize("schedule", list(SCHEDULES))
def test_every_schedule_can_be_chosen(schedule: str) -> None:
    assert len(Scenario(steps=12, rate=0.1, schedule=schedule).rates()) == 12


def test_optimizers() -> None:
    assert Scenario().resolved(make_task("digits")).make_optimizer() == AdamW()
    assert Scenario(task="quadratic").resolved(make_task("quadratic")).make_optimizer() == SGD()
    assert Scenario(optimizer="sgd:momentum=0.5,weight_decay=0.1").make_optimizer() == SGD(0.5, True, 0.1)
    assert Scenario(optimizer="adamw:beta1=0.8").make_optimizer() == AdamW(beta1=0.8)


def test_as_dict_makes_the_same_scenario_again() -> None:
    scenario = Scenario(byzantine=3, attack="alie", attack_stop=99, seed=-5)
    assert Scenario(**scenario.as_dict()) == scenario
