"""The recipes that repeat published experiments: every published figure belongs to a cell, and steps are whole epochs."""

import tomllib
from importlib.resources import files
from typing import Any

import pytest

RECIPES = ("noniid-mnist", "momentum-cifar10")


def recipe(name: str) -> dict[str, Any]:
    return tomllib.loads((files("troth.workshop.lab") / "recipes" / f"{name}.toml").read_text())


def cells(group: dict[str, Any]) -> set[tuple[str, str]]:
    def labels(axis: str) -> list[str]:
        return [value["label"] if isinstance(value, dict) else value for value in group["axes"][axis]]

    return {(attack, defence) for attack in labels("attack") for defence in labels("defence")}


@pytest.mark.parametrize("name", RECIPES)
def test_every_published_figure_has_a_cell_and_every_liars_cell_a_figure(name: str) -> None:
    content = recipe(name)
    assert content["name"] == name
    there = set().union(*(cells(group) for group in content["groups"]))
    published = {(row["attack"], row["defence"]) for row in content["expected"]}
    assert published <= there
    assert {cell for cell in there if cell[1] != "troth" and cell[0] != "none"} <= published
    assert all(row["last"] == 5 and row["source"] for row in content["expected"])


@pytest.mark.parametrize("name", RECIPES)
def test_troth_has_the_momentum_of_the_workers_beside_it(name: str) -> None:
    content = recipe(name)
    for group in content["groups"]:
        workers = group.get("fixed", {}).get("momentum", 0)
        (troth,) = [one for one in group["axes"]["defence"] if isinstance(one, dict) and one["label"] == "troth"]
        optimizer = troth.get("optimizer", content["fixed"]["optimizer"])
        assert optimizer == f"sgd:momentum={workers},nesterov=false"
        assert troth.get("momentum", 0) == 0


def test_an_epoch_is_one_pass_of_the_honest_over_the_images() -> None:
    content = recipe("momentum-cifar10")
    for group in content["groups"]:
        options = content["fixed"] | group["fixed"]
        honest = options["peers"] - options.get("byzantine", 0)
        epoch = -(-50_000 // honest) // 32
        assert (options["steps"], options["evaluate_every"]) == (100 * epoch, epoch)
