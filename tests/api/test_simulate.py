"""`troth.simulate`: steps, results, and a user's own task, attack and rule as objects."""

import csv
import re
import typing
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import troth
from troth.api.simulate import SimulationOptions
from troth.training import Batch, Model
from troth.workshop.attacks import GradientAttack
from troth.workshop.simulation import Scenario


@dataclass(frozen=True)
class Plane(troth.Task):
    """fit a plane"""

    dimension: int = 12

    def model(self) -> nn.Module:
        return nn.Linear(self.dimension, 1)

    def batch(self, draw: troth.Stream) -> Batch:
        x = torch.from_numpy(draw.normal(8 * self.dimension)).float().reshape(8, self.dimension)
        return {"x": x, "y": x.sum(dim=1, keepdim=True)}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return nn.functional.mse_loss(model(batch["x"]), batch["y"])


@dataclass(frozen=True)
class Shout(GradientAttack):
    """send the own gradient a hundred times as loud"""

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        return own_BD * -100


def largest(vectors_PD: Tensor) -> Tensor:
    """A rule that trusts whoever shouts."""
    return vectors_PD[torch.linalg.vector_norm(vectors_PD, dim=1).argmax()]


@pytest.fixture(scope="module")
def result() -> troth.SimulationResult:
    run = troth.simulate(Plane(), peers=7, byzantine=2, attack=Shout(), attack_start=3, steps=14, evaluate_every=7)
    first = next(run)
    assert (first.number, first.of, first.members, first.withstands, first.bans) == (1, 14, 7, 2, ())
    later = list(run)
    assert [one.number for one in later] == list(range(2, 15))
    assert {ban.peer for one in later for ban in one.bans} == set(run.run().liars)
    assert later[-1].metrics == run.run().metrics
    return run.run()


def test_the_liars_of_a_users_own_attack_are_banned_on_a_users_own_task(result: troth.SimulationResult) -> None:
    assert {ban.peer for ban in result.bans} == set(result.liars)
    assert [point["step"] for point in result.curve] == [0, 7, 14]
    assert result.metrics["loss"] < result.curve[0]["loss"]
    assert {f"ban-step{ban.step}-{ban.peer}.json" for ban in result.bans} == set(result.evidence)
    assert all(re.search(r"\(found by peer\d\)", ban.reason) for ban in result.bans), "one name for one peer"


def test_weights_come_back_in_the_users_own_module(result: troth.SimulationResult) -> None:
    model, task = result.model(), Plane()
    assert isinstance(model, nn.Linear)
    with torch.no_grad():
        assert task.evaluate(model)["loss"] == pytest.approx(result.metrics["loss"], rel=1e-6)
    task.model().load_state_dict(result.state_dict(), strict=True)


def test_what_is_printed_says_what_it_is(result: troth.SimulationResult) -> None:
    run = troth.simulate(Plane(), peers=4, steps=5)
    next(run)
    assert repr(run) == "<Simulation of Plane: defence troth, 4 peers; 1 of 5 steps made>"
    said = repr(result)
    assert said.startswith("<SimulationResult of Plane: defence troth, 7 peers, of whom 2 lie (")
    assert "Shout); 14 steps; " in said
    assert f"; banned: {', '.join(ban.peer for ban in result.bans)}; test loss " in said


def test_results_are_saved_as_the_command_saves_them(result: troth.SimulationResult, tmp_path: Path) -> None:
    assert {ban.evidence for ban in result.bans} == {None}, "nothing is written yet"
    result.save(tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"summary.json", "curve.csv", "curve.png", "events.jsonl", "model.safetensors", "evidence"}
    assert (tmp_path / "out/summary.json").read_text() == result.summary.to_json()
    saved = load_file(tmp_path / "out/model.safetensors")
    assert all(torch.equal(tensor, result.state_dict()[name]) for name, tensor in saved.items())
    for ban in result.bans:
        assert ban.evidence is not None
        verdict = troth.verify(ban.evidence, run=tmp_path / "out/evidence/run", recompute=False)
        assert verdict.details["name"].startswith(f"{ban.peer} ("), "and not by 64 digits"
    result.to_csv(tmp_path / "mine.csv")
    rows = list(csv.DictReader((tmp_path / "mine.csv").read_text().splitlines()))
    assert [row["step"] for row in rows] == [str(number) for number in range(15)]
    other = troth.simulate(Plane(), peers=4, steps=2).run()
    with pytest.raises(
        troth.OperatorError, match="holds the results of another run: choose another `out`, or add `over"
    ):
        other.save(tmp_path / "out")
    other.save(tmp_path / "out", overwrite=True)


def test_a_users_own_rule_is_what_the_server_applies() -> None:
    told = {
        name: troth.simulate(
            Plane(), peers=7, byzantine=2, attack=Shout(), attack_start=0, steps=6, defence=defence, evaluate_every=6
        ).run()
        for name, defence in {"largest": largest, "median": troth.rules.median}.items()
    }
    assert told["largest"].metrics["loss"] > told["largest"].curve[0]["loss"]
    assert told["median"].metrics["loss"] < told["median"].curve[0]["loss"]
    assert told["median"].bans == ()


def test_equal_options_give_equal_bits_and_the_steps_can_be_skipped() -> None:
    one, other = (troth.simulate(Plane(), peers=4, steps=3, seed=1) for _ in range(2))
    assert len(list(one)) == 3
    assert one.run().summary == other.run().summary
    assert torch.equal(one.run().state_dict()["weight"], other.run().state_dict()["weight"])


def test_mistakes_name_the_field() -> None:
    with pytest.raises(troth.OperatorError, match="`byzantine` 8 is too many for 16 peers"):
        troth.simulate("digits", byzantine=8)
    with pytest.raises(troth.OperatorError, match="`threads` must be at least 0, got -1"):
        troth.simulate("digits", threads=-1)
    with pytest.raises(troth.OperatorError, match="unknown task 'digit': did you mean digits"):
        troth.simulate("digit")
    with pytest.raises(troth.OperatorError, match=r"simulate\(\) has no option `atack`: did you mean `attack`"):
        troth.simulate("digits", atack="alie")  # type: ignore[call-arg]
    with pytest.raises(
        troth.OperatorError, match=r"simulate\(\) has no option `attack_strt`: did you mean `attack_start`"
    ):
        troth.simulate("digits", attack_strt=3)  # type: ignore[call-arg]
    for wrong, words in (
        ({"peers": "7"}, "`peers` takes a whole number, got '7'"),
        ({"steps": 3.0}, "`steps` takes a whole number or none, got 3.0"),
        ({"rate": "fast"}, "`rate` takes a finite number or none, got 'fast'"),
        ({"task": nn.Linear}, "got the module Linear: troth.task"),
        ({"task": nn.Linear(2, 2)}, "got the module Linear: troth.task"),
        ({"attack": Shout}, r"got the class Shout: make an object of it, Shout\(…\)"),
    ):
        with pytest.raises(troth.OperatorError, match=words):
            troth.simulate(**{"task": "quadratic", **wrong})  # type: ignore[arg-type]
    for function in (troth.new, troth.join, troth.verify, troth.task):
        with pytest.raises(troth.OperatorError, match="has no option `colour`: choose from "):
            function(colour="red")  # type: ignore[call-arg]


def test_every_option_of_a_scenario_can_be_given() -> None:
    typed = typing.get_type_hints(troth.simulate).keys() | typing.get_type_hints(SimulationOptions).keys()
    assert typed - {"return", "options", "threads"} == {one.name for one in fields(Scenario)}
