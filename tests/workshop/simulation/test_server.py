"""Training with a trusted server, attacked and not."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from troth.evidence.file_format import RunSummary
from troth.workshop.attacks import ATTACKS, Coalition
from troth.workshop.rules.table import RULES
from troth.workshop.simulation import Scenario, ServerSimulation, StepReport, simulate
from troth.workshop.simulation.server import finite_rows

ON_GRADIENTS = [name for name, kind in ATTACKS.items() if not kind.needs_protocol]


def run(scenario: Scenario, on_step: Callable[[StepReport], None] = lambda _: None) -> RunSummary:
    return simulate(scenario, on_step).summary


@cache
def full_run(byzantine: int, defence: str) -> RunSummary:
    """Default sizes: 16 peers, 400 steps, the attack from step 50 on."""
    return run(Scenario(byzantine=byzantine, defence=defence))


class TestOutcomes:
    @pytest.mark.long
    def test_without_attack_the_mean_learns(self) -> None:
        assert full_run(0, "mean").metrics["accuracy"] > 0.95

    @pytest.mark.long
    def test_seven_of_sixteen_ruin_the_mean(self) -> None:
        ruined = full_run(7, "mean")
        before = [point["accuracy"] for point in ruined.curve if 40 <= point["step"] <= 50]
        assert min(before) > 0.8, "it was learning well until the attack"
        assert ruined.metrics["accuracy"] < 0.30

    def test_the_summary_says_when_the_run_diverged(self) -> None:
        """AdamW's steps are bounded and only end nowhere; plain SGD runs off to infinity."""
        assert full_run(7, "mean").details["diverged_at"] is None
        ruined = run(Scenario(byzantine=7, defence="mean", optimizer="sgd", rate=0.3, steps=300))
        diverged_at = ruined.details["diverged_at"]
        assert 50 < diverged_at < 300
        assert ruined.steps == diverged_at == ruined.curve[-1]["step"]
        assert json.loads(ruined.to_json())["metrics"]["loss"] is None

    @pytest.mark.long
    def test_centered_clip_survives_them(self) -> None:
        survived = full_run(7, "centered-clip")
        assert survived.metrics["accuracy"] > 0.75
        assert survived.details["diverged_at"] is None
        assert survived.details["attacked_steps"] == 350


class TestReproducibility:
    def short(self, task: str = "digits", seed: int = 0) -> Scenario:
        return Scenario(
            defence="centered-clip",
            task=task,
            seed=seed,
            peers=6,
            byzantine=2,
            steps=20,
            attack_start=5,
            attack_probability=0.5,
        )

    @pytest.mark.parametrize("task", ["digits", "digits-cnn", "quadratic"])
    def test_same_scenario_same_bytes(self, task: str) -> None:
        scenario = self.short(task)
        first = run(scenario).to_json()
        torch.rand(10)  # global generators have no part in it
        assert run(scenario).to_json() == first

    def test_another_seed_another_run(self) -> None:
        first, second = (run(self.short(seed=seed)) for seed in (0, 1))
        assert first.metrics != second.metrics
        assert first.curve[0] != second.curve[0]

    def test_another_seed_other_batches(self) -> None:
        """The quadratic starts at the origin whatever the seed, so what differs afterwards are the batches."""
        first, second = (
            run(Scenario(task="quadratic:dimension=20", defence="mean", peers=3, steps=3, seed=seed)).curve
            for seed in (0, 1)
        )
        assert first[0] == second[0]
        assert first[-1] != second[-1]

    def test_a_negative_seed_is_a_seed(self) -> None:
        assert run(Scenario(defence="centered-clip", peers=2, steps=2, seed=-1)).config["seed"] == -1

    def test_all_peers_in_one_call_is_close_to_one_by_one(self) -> None:
        def trained(one_by_one: bool) -> ServerSimulation:
            simulation = ServerSimulation(
                Scenario(defence="centered-clip", peers=6, byzantine=2, steps=15, attack_start=5, one_by_one=one_by_one)
            )
            for _ in simulation.steps():
                pass
            return simulation

        together, alone = trained(False), trained(True)
        assert together.problem.why_one_by_one == ""
        assert alone.problem.why_one_by_one == "asked for"
        torch.testing.assert_close(together.parameters_D, alone.parameters_D, rtol=1e-3, atol=1e-5)


class TestSummary:
    def test_says_what_was_run_and_how_it_went(self) -> None:
        scenario = Scenario(
            defence="centered-clip",
            peers=5,
            byzantine=2,
            attack="ipm-0.6",
            attack_start=3,
            steps=12,
            evaluate_every=5,
            seed=9,
        )
        summary = run(scenario)
        assert summary.peers == 5
        assert summary.byzantine == scenario.byzantine_peers()
        assert summary.steps == 12
        assert (summary.attack, summary.defence) == ("ipm-0.6", "centered-clip")
        assert [point["step"] for point in summary.curve] == [0, 5, 10, 12]
        assert summary.metrics == {name: value for name, value in summary.curve[-1].items() if name != "step"}
        assert summary.details["attacked_steps"] == 9
        assert summary.details["parameters"] == 4810
        assert summary.config["rate"] == 0.01, "with the task's suggestion filled in"

    def test_names_no_attack_when_nobody_lies(self) -> None:
        summary = run(Scenario(defence="centered-clip", peers=2, steps=2))
        assert summary.attack is None
        assert summary.byzantine == []

    def test_every_step_is_reported(self) -> None:
        reports: list[StepReport] = []
        run(
            Scenario(
                defence="centered-clip", peers=3, byzantine=1, steps=7, attack_start=2, attack_every=2, evaluate_every=3
            ),
            reports.append,
        )
        assert [report.step for report in reports] == [1, 2, 3, 4, 5, 6, 7]
        assert [report.attacked for report in reports] == [False, False, True, False, True, False, True]
        assert [report.metrics is not None for report in reports] == [False, False, True, False, False, True, True]
        assert all(report.alive == 3 and report.loss > 0 for report in reports)


class TestAttacks:
    @pytest.mark.long
    @pytest.mark.parametrize("name", ON_GRADIENTS)
    def test_every_attack_runs(self, name: str) -> None:
        summary = run(Scenario(defence="centered-clip", byzantine=7, attack=name, attack_start=5, steps=20))
        assert summary.steps == 20
        assert summary.details["attacked_steps"] == 15
        assert len(summary.byzantine) == 7

    @pytest.mark.long
    @pytest.mark.parametrize("name", [name for name in ON_GRADIENTS if name not in ("subnormal", "unwatched")])
    def test_liars_matter_only_while_they_attack(self, name: str) -> None:
        """Until step 4 bit for bit the run of an honest swarm, after it another one.

        Not so the subnormal, which are lost in any sum, and those who lie low among so few.
        """
        calm = Scenario(peers=7, steps=8, evaluate_every=1, defence="mean")
        attacked = replace(calm, byzantine=3, attack=name, attack_start=4)
        calm_curve, attacked_curve = run(calm).curve, run(attacked).curve
        assert attacked_curve[:5] == calm_curve[:5]
        assert attacked_curve[5:] != calm_curve[5:]

    def test_only_the_colluders_batches_are_poisoned(self) -> None:
        def sent(attack_start: int) -> tuple[list[int], Tensor]:
            scenario = Scenario(
                defence="centered-clip", peers=5, byzantine=2, attack="label-flip", attack_start=attack_start, steps=9
            )
            simulation = ServerSimulation(scenario)
            return simulation.byzantine, simulation._sent_gradients(0)[1]

        liars, attacked_PD = sent(attack_start=0)
        _, calm_PD = sent(attack_start=8)
        different = [peer for peer in range(5) if not torch.equal(attacked_PD[peer], calm_PD[peer])]
        assert different == liars

    @pytest.mark.parametrize("defence", list(RULES))
    def test_every_defence_runs(self, defence: str) -> None:
        summary = run(Scenario(peers=9, byzantine=2, attack="alie", attack_start=2, steps=6, defence=defence))
        assert summary.steps == 6
        assert summary.metrics["loss"] > 0

    @pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
    def test_every_optimizer_learns(self, optimizer: str) -> None:
        rate = {"sgd": 0.3, "adamw": 0.01}[optimizer]
        summary = run(Scenario(defence="centered-clip", peers=4, steps=40, optimizer=optimizer, rate=rate))
        assert summary.metrics["accuracy"] > 0.7


class TestRowsThatAreNotFinite:
    @pytest.mark.long
    @pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
    @pytest.mark.parametrize("defence", list(RULES))
    def test_are_left_out_and_training_goes_on(
        self, monkeypatch: pytest.MonkeyPatch, defence: str, value: float
    ) -> None:
        def send(_self: Coalition, _step: int, own_BD: Tensor, *_others: object) -> Tensor:
            sent_BD = own_BD.clone()
            sent_BD[:, 3] = value
            return sent_BD

        monkeypatch.setattr(Coalition, "gradients", send)
        summary = run(Scenario(peers=5, byzantine=2, attack_start=0, steps=5, defence=defence))
        assert summary.steps == 5
        assert summary.details["diverged_at"] is None
        assert summary.metrics["loss"] < summary.curve[0]["loss"]

    def test_the_update_is_the_one_of_the_others_alone(self) -> None:
        simulation = ServerSimulation(Scenario(peers=5, byzantine=2, defence="mean", attack_start=0, steps=3))
        sent_PD = torch.arange(20.0).view(5, 4)
        sent_PD[3, 1] = float("nan")
        found_D = simulation._aggregate(sent_PD, finite_rows(sent_PD), simulation.aggregator)
        assert torch.equal(found_D, sent_PD[[0, 1, 2, 4]].mean(dim=0))


class TestDivergence:
    def test_a_run_that_diverges_by_itself_ends_early(self) -> None:
        summary = run(Scenario(peers=2, steps=50, rate=1e30, schedule="constant", defence="mean", evaluate_every=100))
        assert 0 < summary.steps < 50
        assert summary.details["diverged_at"] == summary.steps
        assert summary.curve[-1]["step"] == summary.steps
