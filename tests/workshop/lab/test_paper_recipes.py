"""The recipes of the paper's experiments: its numbers, and the whole grid of attacks and defences."""

import tomllib
from importlib.resources import files
from math import sqrt
from pathlib import Path
from typing import Any

from troth.training.optimizers import SGD
from troth.training.tasks.resnet import ResNet18
from troth.training.tasks.text import Albert
from troth.workshop.lab.recipes import find_sweep
from troth.workshop.lab.sweep import SweepPlan

SEVEN = {"sign-flip", "random-direction", "label-flip", "delayed-gradient", "ipm-0.1", "ipm-0.6", "alie"}
CLIPPED = {"clip + momentum", "clip + momentum, τ = 10"}
SERVERS = {"mean", "median", "geometric-median", "trimmed-mean", "krum", "safeguard"} | CLIPPED


def plan(name: str, tmp_path: Path) -> SweepPlan:
    """All runs, checked; nothing is read of data that is not there."""
    return find_sweep(name).plan(data=tmp_path)


def recipe(name: str) -> dict[str, Any]:
    return tomllib.loads((files("troth.workshop.lab") / "recipes" / f"{name}.toml").read_text())


def test_resnet_has_every_attack_against_every_defence(tmp_path: Path) -> None:
    cells = [cell.labels for cell in plan("resnet18-cifar10", tmp_path).cells if cell.labels["group"] == "7 of 16"]
    radii = {"troth, τ = 1", "troth, τ = 10", "troth, auto"}
    assert {(cell["attack"], cell["defence"]) for cell in cells} == {
        (attack, defence) for attack in SEVEN | {"none"} for defence in SERVERS | radii
    }


def test_other_numbers_periods_and_starts_have_all_attacks(tmp_path: Path) -> None:
    by_group: dict[str, list[Any]] = {}
    for cell in plan("resnet18-cifar10", tmp_path).cells:
        by_group.setdefault(cell.labels["group"], []).append(cell)
    assert {group: {cell.labels["attack"] for cell in cells} for group, cells in by_group.items()} == {
        "7 of 16": SEVEN | {"none"},
        "3 of 16": SEVEN,
        "7 of 16, every 10th step": SEVEN,
        "7 of 16, from step 120 on": SEVEN,
        "7 of 16, from step 2,000 on": SEVEN,
        "9 peers": {"none"},
        "8 peers": {"none"},
        "7 of 16 leave": {"leave"},
    }
    settings = {
        group: {(c.config["byzantine"], c.config["attack_every"], c.config["attack_start"]) for c in cells}
        for group, cells in by_group.items()
        if group not in ("7 of 16", "9 peers", "8 peers")
    }
    assert settings == {
        "3 of 16": {(3, 1, 1000)},
        "7 of 16, every 10th step": {(7, 10, 1000)},
        "7 of 16, from step 120 on": {(7, 1, 120)},
        "7 of 16, from step 2,000 on": {(7, 1, 2000)},
        "7 of 16 leave": {(7, 1, 1000)},
    }


def test_radii_of_a_part_are_the_papers(tmp_path: Path) -> None:
    for name, radii in (("resnet18-cifar10", {1.0, 10.0}), ("albert-large", {0.125})):
        found = {
            cell.config["tau"] * sqrt(1 / cell.config["peers"])
            for cell in plan(name, tmp_path).cells
            if cell.config["defence"] == "troth" and cell.config["peers"] == 16 and cell.config["tau_auto"] is None
        }
        assert found == radii


def test_tasks_suggest_the_papers_hyperparameters() -> None:
    resnet, albert = ResNet18(Path("x")), Albert(Path("x"))
    assert (resnet.batch_size, resnet.rate, resnet.optimizer) == (8, 0.01, "sgd:weight_decay=0.0005")
    assert SGD() == SGD(momentum=0.9, nesterov=True)
    assert (albert.clip_norm, albert.rate, albert.optimizer) == (1.0, 0.00176, "lamb")


def test_delays_and_schedules_shrink_together() -> None:
    fixed = recipe("resnet18-cifar10")["fixed"]
    shrunk = fixed["steps"] / 25_000
    attacks = recipe("resnet18-cifar10")["groups"][0]["axes"]["attack"]
    assert {"label": "delayed-gradient", "attack": f"delayed-gradient:delay={1000 * shrunk:.0f}"} in attacks
    assert fixed["attack_start"] * 3 == fixed["steps"]


def test_albert_has_the_papers_four_attacks_and_the_mean(tmp_path: Path) -> None:
    cells = [cell.labels for cell in plan("albert-large", tmp_path).cells]
    attacks = {"none", "sign-flip", "random-direction", "label-flip", "alie"}
    assert {(c["attack"], c["defence"]) for c in cells} == {
        (a, d) for a in attacks for d in ("troth, τ = 0.125", "mean")
    }
