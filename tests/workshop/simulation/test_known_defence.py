"""Attacks in whole runs: what liars foresee is what comes, who breaks the mean, and who is banned."""

from dataclasses import replace
from itertools import islice

import pytest
import torch
from torch import Tensor

from tests.protocol.small_runs import finished, kept_promises, liars_gone
from troth.workshop.simulation import ProtocolSimulation, Scenario, ServerSimulation, simulate

# P contributors, D coordinates
NEW = ("mimic", "min-max", "min-sum", "gaussian", "zero", "not-finite", "bit-flip", "rop", "tailored", "slow-poison")
SMALL = Scenario(task="quadratic:dimension=30", peers=7, byzantine=2, attack_start=0, steps=30, evaluate_every=100)


def recorded(simulation: ServerSimulation | ProtocolSimulation) -> list[Tensor]:
    """What the defence would make of the rows that were sent, step by step."""
    foreseen: list[Tensor] = []
    coalition = simulation.coalition
    tell = coalition._tell

    def telling(members: list[int], sent_BD: Tensor, honest_HD: Tensor) -> None:
        foreseen.append(coalition._foresee(torch.cat([sent_BD, honest_HD])))
        tell(members, sent_BD, honest_HD)

    coalition._tell = telling  # type: ignore[method-assign, assignment]
    return foreseen


@pytest.mark.parametrize("defence", ["mean", "krum", "centered-clip", "bucketing:rule=krum", "troth"])
@pytest.mark.parametrize("attack", ["tailored", "min-max + rop", "not-finite", "rop + not-finite:where=one"])
def test_what_liars_foresee_is_what_comes(defence: str, attack: str) -> None:
    """With plain SGD of rate 1 a step is the aggregate."""
    scenario = replace(
        SMALL,
        defence=defence,
        attack=attack,
        steps=9,
        optimizer="sgd:momentum=0,nesterov=false",
        rate=1.0,
        schedule="constant",
    )
    simulation = ProtocolSimulation(scenario) if defence == "troth" else ServerSimulation(scenario)
    foreseen, before_D = recorded(simulation), simulation.parameters_D.clone()
    for step, _ in enumerate(islice(simulation.steps(), 3)):  # after the last one a ban may take its update back [U4]
        moved_D = before_D - simulation.parameters_D
        before_D = simulation.parameters_D.clone()
        torch.testing.assert_close(foreseen[step], moved_D, rtol=1e-3, atol=1e-5)
    assert len(foreseen) == 3


@pytest.mark.long
@pytest.mark.parametrize("team", [NEW[:5], NEW[5:]])
def test_the_protocol_bans_them_all(team: tuple[str, ...]) -> None:
    """Five attacks side by side, one liar each; and as long as they are there, some of them validate."""
    scenario = replace(SMALL, peers=13, byzantine=5, validators=2, attack=" + ".join(team), steps=60)
    banned = kept_promises(finished(scenario, until=liars_gone))
    assert len(banned) == 5


@pytest.mark.long
def test_liars_who_count_the_odds_lie_low_once_they_are_too_few() -> None:
    """5 honest and 2 liars: an honest validator audits a given one with chance 1/6·5/7 = 0.12; without one, 1/5·5/6 = 0.17."""
    simulation = ProtocolSimulation(replace(SMALL, attack="unwatched:attack=bit-flip,chance=0.13", steps=60))
    for _ in simulation.steps():
        pass
    first, *beside = simulation.bans
    assert {ban.peer for ban in simulation.bans} <= set(simulation.byzantine)
    assert all((ban.step, f"of step {first.step - 1}" in ban.reason) == (first.step + 1, True) for ban in beside)


@pytest.mark.parametrize("attack", ["tailored", "gaussian", "rop:z=50", "slow-poison:share=20"])
def test_the_mean_breaks(attack: str) -> None:
    task = "quadratic:dimension=30"
    calm = Scenario(task=task, peers=7, steps=60, defence="mean", evaluate_every=100)
    attacked = replace(calm, byzantine=3, attack=attack, attack_start=10)
    assert simulate(attacked).summary.metrics["loss"] > 10 * simulate(calm).summary.metrics["loss"]


@pytest.mark.parametrize("attack", ["tailored", "rop", "mimic", "min-max"])
@pytest.mark.parametrize("defence", ["trimmed-mean", "krum"])
def test_they_go_on_while_a_run_diverges(attack: str, defence: str) -> None:
    """Honest rows are no longer finite in the end, and no rule is defined for what is left: nothing to foresee."""
    scenario = Scenario(
        peers=7,
        byzantine=2,
        attack=attack,
        attack_start=0,
        steps=50,
        rate=1e30,
        schedule="constant",
        defence=defence,
        evaluate_every=100,
    )
    assert simulate(scenario).summary.details["diverged_at"] is not None


def test_nothing_is_foreseen_once_honest_rows_are_not_finite() -> None:
    simulation = ServerSimulation(Scenario(peers=7, byzantine=2, defence="trimmed-mean", attack_start=0, steps=2))
    rows_PD = torch.ones(7, 4)
    rows_PD[3:6, 1] = float("nan")  # three honest ones, so that fewer than no liars would be left
    assert torch.equal(simulation._foresee(rows_PD), torch.zeros(4))


@pytest.mark.long
def test_a_backdoor_opens_with_the_mean_and_closes_little_by_little_with_the_protocol() -> None:
    """A ban ends the poisoning; what the model has learnt until then, further training overwrites slowly."""

    def success(defence: str, byzantine: int) -> dict[float, float]:
        scenario = Scenario(
            task="digits:hidden=16",
            peers=8,
            byzantine=byzantine,
            attack="backdoor:target=3,share=1",
            attack_start=5,
            steps=90,
            defence=defence,
            evaluate_every=30,
            metrics="backdoor:target=3",
        )
        summary = simulate(scenario).summary
        assert summary.metrics["accuracy"] > 0.75, "nobody would notice"
        return {point["step"]: point["backdoor:target=3"] for point in summary.curve}

    assert success("mean", 0)[90] < 0.1
    opened, banned = success("mean", 3), success("troth", 3)
    assert opened[90] > 0.9
    assert banned[90] < 0.6
    assert banned[90] < banned[30]
