"""A trusted server's rules over a whole run: memory, guarantees, workers' momentum, a user's own rule that remembers."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from troth.plugins import name_of
from troth.specs import SpecError
from troth.workshop.attacks import Coalition
from troth.workshop.rules.memory import Aggregator, RuleWithMemory, Setting
from troth.workshop.rules.remembering import Safeguard, SafeguardSingle
from troth.workshop.simulation import Scenario, ScenarioError, ServerSimulation, make_rule, simulate
from troth.workshop.simulation.scenario import specs_in

# P peers, D coordinates

QUADRATIC = "quadratic:dimension=20"

REMEMBERS = '''
from dataclasses import dataclass
from troth.rules import RuleWithMemory

@dataclass(frozen=True)
class Slow(RuleWithMemory):
    """the mean of this step's rows and of the last aggregate"""

    weight: float = 0.5

    def begin(self, setting):
        return Averager(self.weight)

class Averager:
    def __init__(self, weight):
        self.weight, self.last, self.removed = weight, 0.0, {0: 1}

    def __call__(self, vectors_PD, senders):
        assert len(senders) == len(vectors_PD)
        self.last = self.weight * self.last + (1 - self.weight) * vectors_PD.mean(dim=0)
        return self.last
'''


class TestGuarantees:
    @pytest.mark.parametrize(
        ("defence", "byzantine", "assumed"),
        [
            ("krum", 6, None),
            ("krum", 7, 6),
            ("multi-krum:keep=2", 7, 6),
            ("bulyan", 3, None),
            ("bulyan", 7, 3),
            ("trimmed-mean", 7, None),
            ("nnm:rule=krum", 7, 6),
            ("bucketing:rule=krum", 7, 2),
            ("mean", 7, None),
            ("safeguard", 7, None),
        ],
    )
    def test_a_rule_outside_its_guarantee_runs_and_says_so(
        self, defence: str, byzantine: int, assumed: int | None
    ) -> None:
        scenario = Scenario(task=QUADRATIC, byzantine=byzantine, attack_start=1, steps=3, defence=defence)
        details = simulate(scenario).summary.details
        assert details.get("assumed_byzantine") == assumed
        assert ("assumed_byzantine" in details) == (assumed is not None)

    def test_rows_that_are_not_finite_count_as_liars_gone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Six of seven liars send NaN: a rule is told of the one that is left."""
        seen: list[int] = []

        def spy(vectors_PD: Tensor, *, byzantine: int) -> Tensor:
            seen.append(byzantine)
            return vectors_PD.mean(dim=0)

        def send(_self: Coalition, _step: int, own_BD: Tensor, *_others: object) -> Tensor:
            return torch.cat([torch.full_like(own_BD[1:], float("nan")), own_BD[:1]])

        monkeypatch.setattr(Coalition, "gradients", send)
        simulate(Scenario(task=QUADRATIC, byzantine=7, attack_start=0, steps=2, defence=spy))
        assert seen[-2:] == [1, 1], "those before were checks of the options"


class TestSpecs:
    def test_inner_rules(self) -> None:
        for good in ("nnm", "nnm:rule=krum:power=4", "bucketing:size=3,rule=multi-krum:keep=2;power=4"):
            make_rule(good)
        with pytest.raises(SpecError, match="did you mean krum"):
            make_rule("nnm:rule=crum")
        assert specs_in("nnm:rule=my.py:rule=krum") == ["nnm:rule=my.py:rule=krum", "my.py:rule=krum"]
        assert specs_in("krum") == ["krum"]

    def test_an_object_has_its_name(self) -> None:
        assert Scenario(task=QUADRATIC, defence=Safeguard(short=5), steps=9).defence_name == "safeguard:short=5"
        assert name_of(SafeguardSingle()) != "safeguard-single"

    def test_a_file_of_ones_own_may_remember(self, tmp_path: Path) -> None:
        file = tmp_path / "slow.py"
        file.write_text(REMEMBERS)
        scenario = Scenario(task=QUADRATIC, peers=4, steps=5, defence=f"{file}:weight=0.25")
        simulation = ServerSimulation(scenario)
        sent_PD = torch.ones(4, 20)
        assert simulation._aggregate(sent_PD, [True] * 4, simulation.aggregator)[0] == 0.75
        assert simulation._aggregate(sent_PD, [True, True, False, True], simulation.aggregator)[0] == 0.9375
        summary = simulate(scenario).summary
        assert summary.details["removed"] == {"0": 1}
        assert str(file) in summary.config["files"]
        inside = Scenario(task=QUADRATIC, peers=4, steps=5, defence=f"nnm:rule={file}")
        assert str(file) in inside.config()["files"]


class TestMomentum:
    @pytest.mark.parametrize(("average", "weight"), [(False, 1.0), (True, 0.25)])
    def test_by_hand(self, average: bool, weight: float) -> None:
        scenario = Scenario(task=QUADRATIC, peers=3, steps=9, defence="mean", momentum=0.75, momentum_average=average)
        plain = ServerSimulation(Scenario(task=QUADRATIC, peers=3, steps=9, defence="mean"))
        with_memory = ServerSimulation(scenario)
        first_PD, second_PD = plain._sent_gradients(0)[1], plain._sent_gradients(1)[1]
        assert torch.equal(with_memory._sent_gradients(0)[1], first_PD), "the first m is g"
        torch.testing.assert_close(with_memory._sent_gradients(1)[1], 0.75 * first_PD + weight * second_PD)

    def test_liars_forge_from_momenta_and_theirs_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calm = ServerSimulation(Scenario(task=QUADRATIC, peers=4, steps=9, defence="mean", momentum=0.5))
        seen: list[Tensor] = []

        def send(_self: Coalition, _step: int, own_BD: Tensor, honest_HD: Tensor, *_others: object) -> Tensor:
            seen.append(torch.cat([own_BD, honest_HD]))
            return torch.zeros_like(own_BD)

        monkeypatch.setattr(Coalition, "gradients", send)
        attacked = ServerSimulation(
            Scenario(task=QUADRATIC, peers=4, byzantine=1, attack_start=0, steps=9, defence="mean", momentum=0.5)
        )
        order = [*attacked.byzantine, *attacked.honest]
        for step in range(3):
            sent_PD = attacked._sent_gradients(step)[1]
            assert not sent_PD[attacked.byzantine].any()
            torch.testing.assert_close(seen[step], calm._sent_gradients(step)[1][order])

    def test_is_left_out_of_the_options_where_it_is_unset(self) -> None:
        assert "momentum" not in Scenario(task=QUADRATIC, defence="mean", steps=9).config()
        config = Scenario(task=QUADRATIC, defence="mean", steps=9, momentum=0.9).config()
        assert (config["momentum"], config["momentum_average"]) == (0.9, False)

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"momentum": 1.0, "defence": "mean"}, "`momentum` must be from 0 to below 1, got 1"),
            ({"momentum": -0.1, "defence": "mean"}, "`momentum` must be from 0"),
            ({"momentum": 0.9}, "`momentum` is for a trusted server"),
            ({"momentum_average": True, "defence": "mean"}, "`momentum_average` needs `momentum`"),
        ],
    )
    def test_limits(self, options: dict[str, object], why: str) -> None:
        with pytest.raises(ScenarioError, match=why):
            Scenario(**options)  # type: ignore[arg-type]

    def test_clipping_with_momentum_survives_what_ruins_the_mean(self) -> None:
        losses = {
            defence: simulate(
                Scenario(task=QUADRATIC, byzantine=3, attack_start=0, steps=40, defence=defence, momentum=0.9, tau=1.0)
            ).summary.metrics["loss"]
            for defence in ("mean", "centered-clip-momentum")
        }
        assert not losses["mean"] < 100 * losses["centered-clip-momentum"]


LAYERS = """
from dataclasses import dataclass
from troth.attacks import GradientAttack

@dataclass(frozen=True)
class Bias(GradientAttack):
    def forge(self, own_BD, honest_HD, *, layout):
        sent_BD = own_BD.clone()
        sent_BD[:, layout.slices["3.bias"]] = 1e6
        return sent_BD

def without_bias(vectors_PD, *, layout):
    assert [name for name in layout.names if name in layout.slices] == list(layout.names)
    row_D = vectors_PD.mean(dim=0)
    row_D[layout.slices["3.bias"]] = 0
    return row_D
"""


@pytest.mark.parametrize("attack", ["layers.py", "wary:attack=layers.py"])
def test_an_attack_and_a_rule_find_a_layer_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("layers.py").write_text(LAYERS)
    scenario = Scenario(peers=4, byzantine=1, attack=attack, attack_start=0, defence="mean", steps=1, optimizer="sgd")
    spoilt = simulate(scenario)
    kept = simulate(dataclasses.replace(scenario, defence="layers.py"))
    before = simulate(dataclasses.replace(scenario, defence="layers.py", rate=1e-30))
    for found, moves in ((spoilt, True), (kept, False)):
        moved = {
            name: not torch.equal(now, before.problem.layout.views(before.parameters_D)[name])
            for name, now in found.problem.layout.views(found.parameters_D).items()
        }
        assert moved == {"1.weight": True, "1.bias": True, "3.weight": True, "3.bias": moves}
    assert spoilt.parameters_D[spoilt.problem.layout.slices["3.bias"]].abs().min() > 10


def test_a_rule_that_remembers_is_told_the_layout() -> None:
    @dataclass(frozen=True)
    class Sees(RuleWithMemory):
        def begin(self, setting: Setting) -> Aggregator:
            assert setting.layout is not None
            seen.append(tuple(setting.layout.names))
            return lambda vectors_PD, _senders: vectors_PD.mean(dim=0)

    seen: list[tuple[str, ...]] = []
    simulate(Scenario(defence=Sees(), peers=3, steps=1))
    assert seen[-1] == ("1.weight", "1.bias", "3.weight", "3.bias")
