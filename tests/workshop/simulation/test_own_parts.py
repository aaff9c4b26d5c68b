"""Tasks, attacks and rules of a user's own in a simulation: as objects, from files, and what is said of wrong ones."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load, save
from torch import Tensor, nn

from tests.clip.bound_rules import bind_rule
from troth.crypto import Stream
from troth.errors import OperatorError
from troth.evidence.file_format import slug
from troth.training import Batch, Model, Task
from troth.training.initial_state import InitialStateError
from troth.training.tasks.synthetic import Quadratic
from troth.workshop.attacks import GradientAttack
from troth.workshop.attacks.gradient_lies import SignFlip
from troth.workshop.rules.memoryless import krum
from troth.workshop.simulation import Scenario, ScenarioError, make_rule, simulate, start


@dataclass(frozen=True)
class Waves(Task):
    hidden: int = 4

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(1, self.hidden), nn.Tanh(), nn.Linear(self.hidden, 1))

    def batch(self, draw: Stream) -> Batch:
        x = torch.from_numpy(draw.uniform(8)).float()[:, None]
        return {"x": x, "y": torch.sin(x)}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return F.mse_loss(model(batch["x"]), batch["y"])


@dataclass(frozen=True)
class Backwards(GradientAttack):
    scale: float = 100.0

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        return own_BD * -self.scale


@dataclass(frozen=True)
class MeanWithout:
    """the mean without the longest rows"""

    more: int = 0

    def __call__(self, vectors_PD: Tensor, *, byzantine: int) -> Tensor:
        keep = len(vectors_PD) - byzantine - self.more
        return vectors_PD[vectors_PD.norm(dim=1).argsort()[:keep]].mean(dim=0)


SMALL = Scenario(task=Waves(), peers=5, byzantine=1, attack=Backwards(), attack_start=2, steps=8, seed=1)


run = cache(simulate)


class TestObjects:
    def test_the_summary_has_names_and_no_addresses(self) -> None:
        summary, here = run(SMALL).summary, __name__
        assert summary.config["task"] == f"{here}.Waves:hidden=4"
        assert summary.attack == summary.config["attack"] == f"{here}.Backwards:scale=100.0"
        assert "0x" not in summary.to_json()
        assert json.loads(summary.to_json())["config"] == summary.config
        assert slug(summary.config).startswith("tests.workshop.simulation.test-own-parts.Waves-hidden-4-troth-1x-")

    def test_equal_scenarios_give_equal_bytes(self) -> None:
        finished = run(SMALL)
        again = simulate(replace(SMALL, task=Waves(), attack=Backwards()))
        assert again.summary.to_json() == finished.summary.to_json()
        assert torch.equal(again.parameters_D, finished.parameters_D)
        assert again.evidence.keys() == finished.evidence.keys()

    def test_the_model_comes_with_its_problem(self) -> None:
        finished = run(SMALL)
        assert finished.problem.evaluate(finished.parameters_D) == finished.summary.metrics

    def test_a_spec_of_ours_and_the_object_are_the_same_run(self) -> None:
        named = Scenario(
            task="quadratic:dimension=20", byzantine=1, peers=4, steps=3, attack="sign-flip:scale=2.0", attack_start=1
        )
        made = replace(named, task=Quadratic(dimension=20), attack=SignFlip(2.0))
        assert made.as_dict() == named.as_dict()
        assert run(made).summary.to_json() == run(named).summary.to_json()

    def test_several_attacks(self) -> None:
        mixed = replace(SMALL, peers=7, byzantine=2, attack=[Backwards(), "alie"])
        assert mixed.attack_name == f"{__name__}.Backwards:scale=100.0 + alie"
        assert [type(attack).__name__ for attack in mixed.make_attacks()] == ["Backwards", "ALittleIsEnough"]
        assert Scenario(byzantine=2, attack=("alie", "sign-flip")) == Scenario(byzantine=2, attack="alie + sign-flip")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"task": 3}, "`task` is a name or a Task, got 3"),
            ({"task": Waves}, r"`task` is a name or a Task, got the class Waves: make an object of it, Waves\(…\)"),
            ({"attack": Backwards}, "`attack` is a name or a GradientAttack, got "),
            ({"attack": ["alie", 3]}, "`attack` is a name or a GradientAttack, got 3"),
            ({"attack": []}, "`attack` is empty"),
            ({"defence": 3}, "`defence` builtins.int is no rule: give a name, a function"),
            ({"defence": MeanWithout}, "`defence` .*MeanWithout is no rule"),
        ],
        ids=str,
    )
    def test_of_the_wrong_kind(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(OperatorError, match=f"^{message}"):
            Scenario(**{"byzantine": 0, **options})


class TestStarted:
    def test_iterates_and_then_finishes_like_simulate(self) -> None:
        begun = start(SMALL)
        steps = [report.step for report in begun]
        assert steps == list(range(1, 9))
        assert begun.finish().summary.to_json() == run(SMALL).summary.to_json()

    def test_finish_makes_the_steps_that_are_left(self) -> None:
        begun = start(SMALL)
        before_D = begun.parameters_D.clone()
        assert next(begun).step == 1
        assert not torch.equal(begun.parameters_D, before_D)
        assert begun.finish().summary.to_json() == run(SMALL).summary.to_json()

    def test_a_model_too_small_to_be_split_is_refused_with_a_way_out(self) -> None:
        message = (
            r"^`peers` 16 is too many for a model of 13 parameters: .* take at most 13 `peers`, or a larger model$"
        )
        with pytest.raises(ScenarioError, match=message):
            start(Scenario(task=Waves()))


class TestRules:
    @pytest.mark.parametrize(
        "defence", [MeanWithout(), MeanWithout(more=1), lambda vectors_PD: vectors_PD.median(dim=0).values]
    )
    def test_objects_and_functions_train(self, defence: Callable[..., Tensor]) -> None:
        finished = run(replace(SMALL, defence=defence))
        assert finished.summary.steps == 8
        assert "0x" not in finished.summary.defence

    def test_are_given_what_they_name(self) -> None:
        given: dict[str, Any] = {}

        def rule(vectors_PD: Tensor, *, tau: float, byzantine: int = 9, own: str = "x") -> Tensor:
            given.update(tau=tau, byzantine=byzantine, own=own)
            return vectors_PD.mean(dim=0)

        run(replace(SMALL, defence=rule, tau=3.0))
        assert given == {"tau": 3.0, "byzantine": 1, "own": "x"}

    def test_from_a_file_with_options(self, tmp_path: Path) -> None:
        file = tmp_path / "rules.py"
        file.write_text(
            "def first(vectors_PD, *, k=0, flip: bool = False):\n    return vectors_PD[k] * (-1 if flip else 1)\n"
        )
        rows_PD = torch.arange(6.0).view(3, 2)
        entry = make_rule(f"{file}:first:k=2,flip=true")
        assert bind_rule(entry, byzantine=0, tau=1.0)(rows_PD).tolist() == [-4.0, -5.0]
        assert bind_rule(make_rule(str(file)), byzantine=0, tau=1.0)(rows_PD).tolist() == [0.0, 1.0]
        with pytest.raises(OperatorError, match="option 'k' takes a whole number, got 'x'"):
            make_rule(f"{file}:first:k=x")
        with pytest.raises(OperatorError, match=r"has no option 'j' \(its options: k, flip\)"):
            make_rule(f"{file}:first:j=1")

    def test_a_dataclass_in_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "rules.py"
        file.write_text(
            "from dataclasses import dataclass\n@dataclass\nclass Pick:\n    k: int = 0\n"
            "    def __call__(self, vectors_PD):\n        return vectors_PD[self.k]\n"
        )
        entry = make_rule(f"{file}:k=1")
        assert bind_rule(entry, byzantine=0, tau=1.0)(torch.eye(3)).tolist() == [0.0, 1.0, 0.0]

    def test_ours_have_options_too(self) -> None:
        rows_PD = torch.arange(12.0).view(6, 2)
        entry = make_rule("multi-krum:keep=1")
        assert torch.equal(bind_rule(entry, byzantine=1, tau=1.0)(rows_PD), krum(rows_PD, byzantine=1))

    @pytest.mark.parametrize(
        ("rule", "message"),
        [
            (
                lambda vectors_PD: vectors_PD,
                r"must give one vector of 5 numbers for each matrix, and gave a tensor \(5, 5\)",
            ),
            (lambda vectors_PD: vectors_PD[0].long(), "must give one vector of 5 numbers .* of torch.int64"),
            (lambda _: None, "must give one vector of 5 numbers for each matrix, and gave NoneType"),
            (lambda vectors_PD: vectors_PD[0] / 0, "gives something that is not finite for ordinary vectors"),
            (lambda vectors_PD: vectors_PD[99], "cannot be used here: IndexError: index 99 is out of bounds"),
        ],
    )
    def test_wrong_ones_are_refused_before_the_run(self, rule: Callable[..., Tensor], message: str) -> None:
        with pytest.raises(OperatorError, match=f"^`defence` .*{message}"):
            replace(SMALL, defence=rule)

    def test_one_that_goes_wrong_later_is_told_so(self) -> None:
        calls = []

        def rule(vectors_PD: Tensor) -> Tensor:
            calls.append(vectors_PD)
            return vectors_PD[0] if len(calls) < 4 else vectors_PD

        with pytest.raises(OperatorError, match=r"^`defence` .*rule must give one vector of 13 numbers"):
            run(replace(SMALL, defence=rule))


class TestAttacks:
    @pytest.mark.parametrize(
        ("forged", "got"),
        [(lambda own_BD: own_BD[0], r"one of \(13,\)"), (lambda _: None, "NoneType")],
    )
    def test_rows_of_another_shape(self, forged: Callable[[Tensor], Any], got: str) -> None:
        class Odd(GradientAttack):
            def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
                rows: Tensor = forged(own_BD)
                return rows

        with pytest.raises(OperatorError, match=rf"Odd must forge a tensor of \(1, 13\) .* and gave {got}"):
            run(replace(SMALL, attack=Odd()))

    def test_rows_that_are_not_finite_are_a_lie_like_any_other(self) -> None:
        class Nothing(GradientAttack):
            def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
                return own_BD * float("nan")

        finished = run(replace(SMALL, attack=Nothing()))
        assert finished.summary.details["agreement"]
        assert bool(finished.parameters_D.isfinite().all())


class TestInitialState:
    @pytest.mark.parametrize("defence", ["troth", "mean"])
    def test_a_model_goes_on_from_where_it_was(self, tmp_path: Path, defence: str) -> None:
        calm = replace(SMALL, byzantine=0, defence=defence)
        first = run(calm)
        file = tmp_path / "model.safetensors"
        file.write_bytes(save(first.problem.state_dict(first.parameters_D)))
        begun = start(replace(calm, initial_state=file))
        assert torch.equal(begun.parameters_D, first.parameters_D)
        assert begun.curve[0] == {**first.summary.metrics, "step": 0}
        assert start(replace(calm, initial_state=tmp_path)).curve == begun.curve
        other = begun.finish()
        assert other.summary.config["initial_state"] == str(file)
        assert "initial_state" not in first.summary.config

    def test_another_start_is_another_run(self, tmp_path: Path) -> None:
        ends = []
        for factor in (0.0, 0.5):
            first, file = run(SMALL), tmp_path / "model.safetensors"
            file.write_bytes(save(first.problem.state_dict(first.parameters_D * factor)))
            scenario = replace(SMALL, byzantine=0, steps=1, initial_state=file)
            ends.append(simulate(scenario).summary.details["final_record"])
        assert len(set(ends)) == 2

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "cannot read .*: No such file"),
            (b"nonsense", "is no safetensors file"),
            (save({"other": torch.zeros(3)}), "these weights do not fit the model: '0.weight' is missing"),
            (save({"parameters": torch.zeros(3)}), "holds 3 parameters, and the task's model has 13"),
            (save({"parameters": torch.full((13,), torch.nan)}), "holds something that is not a number"),
        ],
    )
    def test_a_file_that_does_not_fit(self, tmp_path: Path, content: bytes | None, message: str) -> None:
        file = tmp_path / "start.safetensors"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(InitialStateError, match=message):
            start(replace(SMALL, initial_state=file))

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        with pytest.raises(InitialStateError, match="holds no checkpoint"):
            start(replace(SMALL, initial_state=tmp_path))


class TestFiles:
    def test_the_content_of_a_file_is_part_of_the_run(self, tmp_path: Path) -> None:
        file = tmp_path / "rule.py"
        text = "def mine(vectors_PD):\n    return vectors_PD.mean(dim=0)\n"
        file.write_text(text)
        scenario = replace(SMALL, defence=str(file))
        before = scenario.config()
        assert list(before["files"]) == [str(file)]
        assert slug(before).startswith("tests.workshop.simulation.test-own-parts.Waves-hidden-4-rule.py-")
        file.write_text(text + "# another\n")
        assert slug(scenario.config()) != slug(before)

    def test_a_saved_model_loads_into_a_module(self) -> None:
        finished = run(SMALL)
        saved = load(save(finished.problem.state_dict(finished.parameters_D)))
        module = Waves().model()
        module.load_state_dict(saved)
        with torch.no_grad():
            assert finished.problem.task.evaluate(module) == pytest.approx(finished.summary.metrics)
