"""Owners who aggregate wrongly, reporters who lie, accusers who invent: caught at once, and the model stays right."""

import dataclasses
import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from tests.protocol.replay import replay
from tests.protocol.small_runs import SMALL, finished
from troth.crypto import PeerId, derive
from troth.evidence.verify import verify_ban
from troth.protocol.core.records import decode_record
from troth.protocol.core.roles import combine
from troth.protocol.step.audits import sum_vanishes, suspicious_parts, too_long
from troth.protocol.wire.messages import Center, ChargeKind, ReportNumbers
from troth.protocol.wire.primitives import Primitives, ReportTable
from troth.training.work import TrainingWork
from troth.workshop.simulation import ProtocolSimulation, Scenario

NOW = {
    "wrong-aggregate": ChargeKind.AGGREGATE,
    "wrong-report": ChargeKind.REPORT,
    "false-accusation": ChargeKind.REPORT,
}


@pytest.fixture(scope="module", params=sorted(NOW))
def cheated(request: pytest.FixtureRequest) -> ProtocolSimulation:
    """Seven peers, two of whom cheat from step 3 on whenever their role allows it."""
    return finished(dataclasses.replace(SMALL, attack=request.param, steps=12, evaluate_every=12))


def test_cheaters_are_banned_in_the_step_in_which_they_cheat(cheated: ProtocolSimulation) -> None:
    """[V1, V2, T6] A liar that contributes in step 3 is gone in step 3; a validator of step 3 in the next step it contributes."""
    assert {ban.peer for ban in cheated.bans} == set(cheated.byzantine)
    record = decode_record(cheated.trace[3])
    guilty = {peer for peer in record.members if cheated.numbers[PeerId(peer)] in cheated.byzantine}
    validators = set(record.members) - set(record.contributors) - set(record.banned)
    assert guilty - validators == set(record.banned) != set()
    assert cheated.agreement


def test_the_evidence_says_what_they_did(cheated: ProtocolSimulation) -> None:
    """[E1, T4]"""
    for evidence in cheated.evidence:
        proof = verify_ban(evidence.text)
        assert cheated.numbers[proof.banned] in cheated.byzantine
        if "false" in cheated.scenario.attack_name:
            assert proof.judgement.banned == proof.judgement.accuser
        else:
            assert proof.judgement.kind in (ChargeKind.REPORT, ChargeKind.AGGREGATE)


def test_the_model_is_the_right_one_bit_for_bit(cheated: ProtocolSimulation) -> None:
    """[N1, U1] A trusted server with the same contributors, seeds and bounds, and no cheating, ends with the same bits."""
    scenario = cheated.scenario
    work = TrainingWork(cheated.problem, scenario.make_optimizer(), scenario.rates(), Primitives())
    records = [decode_record(raw) for raw in cheated.trace]
    served = replay(cheated.run, work, work.first(derive(scenario.seed, "model")), records)
    assert torch.equal(served.parameters_D, cheated.states[cheated.honest[0]].training.parameters_D)


@pytest.mark.long
def test_a_cheating_owner_costs_one_more_attempt_and_nobody_else_does() -> None:
    """[N1] Its gradient is out of that step too; parts and bounds stay."""
    for attack, again in (("wrong-aggregate", True), ("false-accusation", False)):
        simulation = finished(dataclasses.replace(SMALL, attack=attack, steps=5, evaluate_every=5))
        record = decode_record(simulation.trace[3])
        assert record.banned
        assert (set(record.banned) & set(record.contributors) == set()) == again
        assert record.parts == 6
        assert simulation.attempts == 6 + again + len({ban.step for ban in simulation.bans} - {3}) * again


def test_a_new_attempt_has_new_coins() -> None:
    """[N2] Randomness of a repeated step is not what the discarded attempt's coins would have drawn."""
    entropy = next(iter(ProtocolSimulation(SMALL).peers.values())).entropy
    assert entropy.coins(3, 0) != entropy.coins(3, 1)
    assert entropy.coins(3, 1) == entropy.coins(3, 1)


@pytest.mark.long
def test_an_owner_that_lets_a_wrong_report_pass_is_banned_with_the_reporter() -> None:
    """[T7] Liars never accuse each other; where a liar owns the part that another lies about, both go."""
    seen = set()
    for seed in range(12):
        simulation = finished(dataclasses.replace(SMALL, attack="wrong-report", steps=5, evaluate_every=5, seed=seed))
        record = decode_record(simulation.trace[3])
        kinds = {judgement.kind for judgement in record.judgements if judgement.banned is not None}
        seen.add(frozenset(kinds))
        if ChargeKind.AGGREGATE in kinds:
            owners = {j.target for j in record.judgements if j.kind == ChargeKind.AGGREGATE and j.banned}
            assert {simulation.numbers[PeerId(owner)] for owner in owners} <= set(simulation.byzantine)
    assert frozenset({ChargeKind.REPORT}) in seen
    assert any(ChargeKind.AGGREGATE in kinds for kinds in seen)


@pytest.mark.long
def test_not_a_number_ruins_nothing() -> None:
    """[C3, D1] A gradient that overflows counts as zeros, and an audit bans its sender."""
    simulation = finished(dataclasses.replace(SMALL, attack="sign-flip:scale=1e308"))
    assert {ban.peer for ban in simulation.bans} == set(simulation.byzantine)
    assert all("gradient" in ban.reason for ban in simulation.bans)
    assert torch.isfinite(simulation.states[simulation.honest[0]].training.parameters_D).all()


def reports(*rows: list[float]) -> list[ReportNumbers]:
    return [
        ReportNumbers(np.ones(1), np.array([math.sqrt(sum(x * x for x in row) / len(row))]), np.array([row]))
        for row in rows
    ]


def announced(norm: float, rounding: float = 0.0) -> Center:
    return Center(0, bytes(32), norm, rounding)


def test_a_rounded_aggregate_may_be_off_by_a_quarter_more_than_rounding_moves_it() -> None:
    """[V2, C4]"""
    off = reports([1.0 + 2e-3, -2.0], [-1.0, 2.0])
    assert not sum_vanishes(0, off, announced(1.0, 2e-3 / 2 / math.sqrt(2) / 1.26), 10.0, 9)
    assert sum_vanishes(0, off, announced(1.0, 2e-3 / 2 / math.sqrt(2) / 1.24), 10.0, 9)


def test_sums_that_vanish_and_sums_that_do_not() -> None:
    """[V2] The tolerance is eight times what rounding the aggregate can cost, and no more."""
    balanced = reports([1.0, -2.0], [-1.0, 2.0])
    assert sum_vanishes(0, balanced, announced(1.0), tau=10.0, size=9)
    allowed = 2.0**-21 * 2 * 1.0
    assert sum_vanishes(0, reports([1.0 + 0.9 * allowed, -2.0], [-1.0, 2.0]), announced(1.0), 10.0, 9)
    off = reports([1.0 + 2 * allowed, -2.0], [-1.0, 2.0])
    assert not sum_vanishes(0, off, announced(1.0), 10.0, 9)
    assert not sum_vanishes(0, off, announced(100.0), 1e-6, 9)  # a centre as long as the rows are far buys no slack


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1e-13, 1e-12, 1e-7, 1e-6, 1.0]), st.booleans())
def test_the_fast_check_decides_as_its_definition(seed: int, shift: float, long: bool) -> None:
    """[V2] Near the threshold and far from it."""
    generator = np.random.default_rng(seed)
    tables = generator.normal(size=(5, 3, 16))
    tables[-1] = -tables[:-1].sum(axis=0) + shift * generator.normal(size=(3, 16))
    norms = np.sqrt((tables**2).mean(axis=2)) / (generator.uniform(1.5, 3.5) if long else 1.0)
    said = [ReportNumbers(norms[k], norms[k], tables[k]) for k in range(5)]
    center = [announced(1.0), announced(2.0**-30, 2.0**-33), announced(0.0)]
    taus, bounds = [5.0, 0.7, 5.0], (0, 1, 2, 5)
    slow = {
        part
        for part in range(3)
        if not sum_vanishes(part, said, center[part], taus[part], bounds[part + 1] - bounds[part])
        or any(too_long(part, numbers, taus[part]) for numbers in said)
    }
    assert suspicious_parts(ReportTable(tuple(said)), center, taus, bounds) == slow


def test_projections_longer_than_their_vector_are_public() -> None:
    """[V2] At 2.5 times min(norm, τ)."""
    numbers = ReportNumbers(np.ones(1), np.ones(1), np.full((1, 16), 2.4))
    assert not too_long(0, numbers, tau=10.0)
    assert too_long(0, ReportNumbers(np.ones(1), np.ones(1), np.full((1, 16), 2.6)), tau=10.0)
    assert too_long(0, numbers, tau=0.5)


@pytest.mark.long
def test_honest_runs_never_come_near_the_public_bounds() -> None:
    """[V2] No dispute in a calm run of 16 on digits: one attempt a step, no trial."""
    calm = finished(Scenario(steps=12, evaluate_every=12))
    assert (calm.attempts, calm.trials) == (12 + 1, 0)  # and the closing step


def test_a_member_that_is_out_has_no_vote_and_no_coin_in_later_attempts() -> None:
    """[N1, N2] The randomness of a repeated step is made of the coins of those who are left."""
    simulation = finished(dataclasses.replace(SMALL, attack="wrong-aggregate", steps=4, evaluate_every=4))
    record = decode_record(simulation.trace[3])
    assert record.banned
    left = [PeerId(member) for member in record.members if member not in record.banned]
    coins = {peer: simulation.peers[peer].entropy.coins(3, 1).b for peer in left}
    assert record.randomness == combine("roles", 3, 1, coins)
