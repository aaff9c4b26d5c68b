"""The protocol among sixteen peers on real data, and what it costs."""

import dataclasses
import re

import pytest
import torch
from torch import Tensor

from tests.protocol.replay import replay
from troth.crypto import Stream, derive
from troth.protocol.core.records import decode_record
from troth.protocol.wire.messages import GuiltySide
from troth.protocol.wire.primitives import Primitives
from troth.training import Batch, Model
from troth.training.tasks.synthetic import Quadratic
from troth.training.work import TrainingWork
from troth.workshop.simulation import ProtocolSimulation, Scenario, simulate, start


def finished(scenario: Scenario) -> ProtocolSimulation:
    simulation = ProtocolSimulation(scenario)
    for _ in simulation.steps():
        pass
    return simulation


@pytest.mark.long
def test_without_attackers_a_trusted_server_gets_the_same_bits() -> None:
    """60 steps of digits: the protocol adds checks to training and changes nothing in it."""
    simulation = finished(Scenario(peers=8, steps=60, evaluate_every=60))
    scenario = simulation.scenario
    work = TrainingWork(simulation.problem, scenario.make_optimizer(), scenario.rates(), Primitives())
    records = [decode_record(raw) for raw in simulation.trace]
    assert [record.updated for record in records] == [True] * 60 + [False]
    assert records[-1].closing
    served = replay(simulation.run, work, work.first(derive(scenario.seed, "model")), records)
    ours = simulation.states[simulation.honest[0]].training
    assert torch.equal(served.parameters_D, ours.parameters_D)
    assert work.digest(served) == records[-1].state_after
    assert simulation.evaluate()["accuracy"] > 0.88


@pytest.mark.long
def test_seven_of_sixteen_liars_are_caught_and_the_model_recovers() -> None:
    """Sign flips ×1000 from step 20 on; the plain mean ends below 30 % under the same attack."""
    scenario = Scenario(byzantine=7, attack_start=20, steps=120, evaluate_every=120, seed=5)
    finish = simulate(scenario)
    details = finish.summary.details
    assert details["attackers_active"] == finish.summary.byzantine
    assert {ban["peer"] for ban in details["banned"]} == set(finish.summary.byzantine)
    assert (details["honest_banned"], details["agreement"]) == (0, True)
    assert sorted(finish.evidence) == sorted(ban["evidence"] for ban in details["banned"])
    assert finish.summary.metrics["accuracy"] > 0.9
    ruined = simulate(dataclasses.replace(scenario, defence="mean")).summary
    assert ruined.metrics["accuracy"] < 0.3


@pytest.mark.long
def test_announcements_cost_the_same_for_any_number_of_parameters() -> None:
    """To the byte: 10⁴ and 3·10⁵ parameters, and only bulk traffic grows."""
    small, large = (
        simulate(Scenario(task=f"quadratic:dimension={size}", peers=8, steps=3, evaluate_every=3)).summary.details
        for size in (10**4, 3 * 10**5)
    )
    assert small["announced_bytes_per_step"] == large["announced_bytes_per_step"]
    assert large["bulk_bytes_per_step"] > 27 * small["bulk_bytes_per_step"]


@pytest.mark.long
@pytest.mark.parametrize(
    "attack", ["label-flip", "delayed-gradient:delay=3", "ipm-0.6", "ipm-0.1", "alie", "random-direction"]
)
def test_every_attack_is_caught_by_recomputing(attack: str) -> None:
    scenario = Scenario(peers=7, byzantine=2, attack=attack, attack_start=4, steps=45, evaluate_every=45, seed=3)
    details = simulate(scenario).summary.details
    assert {ban["peer"] for ban in details["banned"]} == set(details["attackers_active"]) != set()
    assert details["honest_banned"] == 0


@pytest.mark.long
def test_a_network_with_convolutions_and_batchnorm_is_audited_exactly() -> None:
    """Its bits depend on the width of the batched call below two lanes; the auditor computes in the same width."""
    simulation = finished(
        Scenario(task="digits-cnn", peers=7, byzantine=2, attack_start=5, steps=40, evaluate_every=40)
    )
    assert {ban.peer for ban in simulation.bans} == set(simulation.byzantine)
    assert simulation.trials >= len(simulation.bans)
    verdicts = {j.verdict for raw in simulation.trace for j in decode_record(raw).judgements}
    assert verdicts == {GuiltySide.ACCUSED}  # no honest peer was accused, by however many


@pytest.mark.long
def test_beyond_the_guarantee_liars_can_win_and_the_summary_says_so() -> None:
    """Five of nine: they are the majority of jurors, and honest accusers are banned instead."""
    scenario = Scenario(peers=9, byzantine=5, beyond_guarantee=True, attack_start=3, steps=30, evaluate_every=30)
    details = simulate(scenario).summary.details
    assert details["beyond_guarantee"]
    assert details["honest_banned"] > 0


@pytest.mark.long
def test_two_validators_audit_twice_as_much() -> None:
    """Never the same target twice in a step; at the end five audit each contributor."""
    plain = Scenario(task="quadratic:dimension=64", peers=10, steps=14, evaluate_every=14)
    for m in (1, 2):
        quiet = finished(dataclasses.replace(plain, validators=m))
        last = len(decode_record(quiet.trace[13]).contributors)
        assert quiet.audits == m * 13 + 5 * last
        lied = finished(dataclasses.replace(plain, validators=m, byzantine=3, attack_start=1))
        assert {ban.peer for ban in lied.bans} == set(lied.byzantine)


def test_small_numbers_of_peers_run() -> None:
    """One peer alone, two, three (nobody validates), four (one does)."""
    for peers, audits in ((1, 0), (2, 2), (3, 3 * 2), (4, 4 + 3 * 3)):  # at the end everyone audits everyone
        simulation = finished(Scenario(task="quadratic:dimension=64", peers=peers, steps=5, evaluate_every=5))
        assert (simulation.audits, simulation.agreement) == (audits, True)


@dataclasses.dataclass(frozen=True)
class Spoilt(Quadratic):
    """Some batches have a gradient that is not finite, though the loss is."""

    share: float = 0.5

    def batch(self, draw: Stream) -> Batch:
        return super().batch(draw) | {"rest": torch.tensor(float(draw.uniform(1)[0] >= self.share))}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return super().loss(model, batch) + torch.sqrt(batch["rest"] + 0 * model().sum())


def test_gradients_that_are_not_finite_are_told_and_counted_while_others_are() -> None:
    run = start(Scenario(task=Spoilt(dimension=20), peers=7, byzantine=1, attack_start=1, steps=12, seed=1))
    notes = {report.step: report.notes for report in run if report.notes}
    details = run.finish().summary.details
    assert (details["diverged_at"], run.ended_early, details["honest_banned"]) == (None, "", 0)
    assert 12 < details["not_finite"] < 48
    ((note,),) = notes.values()  # once; how many depends on the batches, and those on the digest of this file
    assert re.fullmatch(r"gradients of [1-5] of 6 honest peers are not finite, and count as zero", note)


def test_a_run_ends_after_three_steps_without_a_finite_gradient() -> None:
    run = start(Scenario(task="quadratic:dimension=20", peers=4, steps=20, rate=1e30, tau=1e30))
    losses = [report.loss for report in run]
    details = run.finish().summary.details
    assert details["diverged_at"] == len(losses) - 3
    assert "diverged at step" in run.ended_early
    assert details["agreement"]


@pytest.mark.long
def test_a_run_without_evidence_has_the_same_summary() -> None:
    scenario = Scenario(task="quadratic:dimension=60", peers=7, byzantine=2, attack_start=3, steps=14, seed=2)
    one, other = start(scenario).finish(), start(scenario, evidence=False).finish()
    assert one.summary == other.summary
    assert one.evidence
    assert not other.evidence
