"""The clipping radius that follows the run, and the norm cap: functions of announced numbers that no minority can move."""

import dataclasses
import math
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from tests.paper.conftest import SMALL, finished, kept_promises, records, run_on
from troth.crypto import PeerId
from troth.protocol.messages import Kind, ReportNumbers
from troth.protocol.parts import part_bounds
from troth.protocol.run import Parameters, RunError
from troth.protocol.scales import CAP_STEPS, Scales, far_parts, lower_median, part_taus, pooled_norm
from troth.protocol.state import State
from troth.simulation import ProtocolSimulation, Scenario
from troth.training.work import Training

# C contributors, P parts, D coordinates

BOUNDS = part_bounds(60, 4)
FIXED = Parameters(size=60, tau=1.0, byzantine=1)
AUTO = dataclasses.replace(FIXED, tau_auto=0.5, tau_least=0.25, tau_most=4.0)

lengths = st.floats(1e-6, 1e6)
claims = st.floats(-1e300, 1e300)  # whatever a liar may announce


def say(norms_P: list[float]) -> ReportNumbers:
    return ReportNumbers(np.array(norms_P), np.zeros((len(norms_P), 16)))


def everyone_at(distance: float, contributors: int = 5) -> list[ReportNumbers]:
    """Reports of gradients that are all this far from the aggregate, measured over the whole vector."""
    return [say(list(part_taus(distance, BOUNDS))) for _ in range(contributors)]


def after(distances: list[float], parameters: Parameters) -> list[Scales]:
    """The scales of step 0 and of the steps after these, in each of which everyone was equally far away."""
    scales = [Scales.first(parameters)]
    for distance in distances:
        scales.append(scales[-1].after(pooled_norm(everyone_at(distance), BOUNDS), parameters))
    return scales


@given(st.lists(lengths, min_size=1, max_size=40))
def test_the_lower_median_is_the_smallest_that_half_do_not_exceed(numbers: list[float]) -> None:
    """[A6] The ⌈k/2⌉-th smallest of k: of an even number the lower of the two in the middle, never something between."""
    median = lower_median(numbers)
    assert median == sorted(numbers)[math.ceil(len(numbers) / 2) - 1]
    assert 2 * sum(number <= median for number in numbers) >= len(numbers)
    assert 2 * sum(number < median for number in numbers) < len(numbers)


def test_norms_of_parts_are_measured_as_of_the_whole_vector() -> None:
    """[A6] `norm/√(d/D)`: parts of other lengths say the same about the same gradient."""
    uneven = (0, 5, 60)
    assert pooled_norm([say(list(part_taus(3.0, uneven)))] * 3, uneven) == pytest.approx(3.0)
    assert pooled_norm(everyone_at(7.0), BOUNDS) == pytest.approx(7.0)


@given(st.data(), st.integers(1, 9), st.integers(1, 6))
def test_a_minority_of_wild_claims_cannot_move_the_median_out_of_the_honest_range(
    data: st.DataObject, honest: int, parts: int
) -> None:
    """[A6, V3] Huge, tiny or negative: what is pooled stays between the least and the largest that is true."""
    bounds = part_bounds(60, parts)
    liars = data.draw(st.integers(0, honest - 1))
    told = [say(data.draw(st.lists(lengths, min_size=parts, max_size=parts))) for _ in range(honest)]
    lies = [say(data.draw(st.lists(claims, min_size=parts, max_size=parts))) for _ in range(liars)]
    share_P = np.array([(stop - start) / 60 for start, stop in pairwise(bounds)])
    true_CP = np.stack([report.norms_P for report in told]) / np.sqrt(share_P)
    mixed = data.draw(st.permutations([*told, *lies]))
    assert true_CP.min() <= pooled_norm(mixed, bounds) <= true_CP.max()


def test_a_majority_could() -> None:
    """[A6] Else the test before would prove nothing."""
    assert pooled_norm([*everyone_at(1.0, 2), *everyone_at(1e9, 3)], BOUNDS) > 1e8


@given(st.lists(lengths, max_size=80), st.sampled_from([0.05, 0.3, 0.5]))
def test_tau_moves_two_per_cent_a_step_and_stays_in_its_bounds(distances: list[float], share: float) -> None:
    """[A6] However the distances jump."""
    parameters = dataclasses.replace(AUTO, tau_auto=share)
    taus = [scales.tau for scales in after(distances, parameters)]
    assert taus[0] == 1.0
    for now, then in pairwise(taus):
        assert 0.98 * now <= then <= 1.02 * now or then in (0.25, 4.0)
        assert 0.25 <= then <= 4.0


@given(st.floats(0.3, 3.5), st.sampled_from([0.1, 0.25, 0.5]))
def test_tau_settles_at_its_share_of_the_usual_distance(wanted: float, share: float) -> None:
    """[A6] `c·median`: two per cent a step lead anywhere within the bounds in a hundred steps."""
    taus = [s.tau for s in after([wanted / share] * 100, dataclasses.replace(AUTO, tau_auto=share))]
    assert taus[-1] == pytest.approx(wanted)
    rising = wanted > 1.0
    assert all((then >= now) == rising or then == pytest.approx(now) for now, then in pairwise(taus))


def test_tau_looks_at_32_steps_and_their_lower_median() -> None:
    """[A6] Sixteen wild steps of 32 do not move it, a seventeenth does; and what is older than that is forgotten."""
    calm, wild = 2.0, 2e6
    assert after([calm] * 40 + [wild] * 16, AUTO)[-1].tau == 1.0
    assert after([calm] * 40 + [wild] * 17, AUTO)[-1].tau == 1.02
    assert after([wild] * 30 + [calm] * 32, dataclasses.replace(AUTO, tau_most=1.0))[-1].tau == 1.0


@given(st.lists(lengths, max_size=70))
def test_a_given_tau_never_moves(distances: list[float]) -> None:
    """[A6] Only τ = auto follows the run."""
    assert {scales.tau for scales in after(distances, FIXED)} == {1.0}


@pytest.mark.parametrize(
    "wrong",
    [{"tau_auto": 0.51}, {"tau_auto": 0.0}, {"tau_auto": math.nan}, {"tau_least": 1.5}, {"tau_most": 0.5}],
    ids=str,
)
def test_a_share_that_runs_away_is_refused(wrong: dict[str, float]) -> None:
    """[A6] Above one half liars can drive τ up without end; and τ starts within its bounds."""
    with pytest.raises(RunError):
        dataclasses.replace(FIXED, **wrong)  # type: ignore[arg-type]


def test_there_is_no_cap_in_the_first_64_steps() -> None:
    """[V3] Step 64 is the first that has one: four times the median of the 64 before."""
    scales = after([3.0] * 64, FIXED)
    assert [s.cap for s in scales[:64]] == [None] * 64
    assert scales[64].cap == pytest.approx(12.0)


@given(st.lists(lengths, min_size=1, max_size=12), st.sampled_from([FIXED, AUTO]))
def test_the_cap_grows_one_per_cent_a_step_and_is_never_below_two_tau(
    distances: list[float], parameters: Parameters
) -> None:
    """[V3] It may fall at once: a cap that is too low costs a check, one that is too high lets harm through."""
    stretched = [distance for distance in distances for _ in range(8)]
    scales = after([distances[0]] * 63 + stretched, parameters)
    for now, then in pairwise(scales[CAP_STEPS:]):
        assert now.cap is not None
        assert then.cap is not None
        assert then.cap >= 2 * then.tau
        assert then.cap <= max(1.01 * now.cap, 2 * then.tau)
        wanted = 4 * lower_median(then.medians)
        assert then.cap == pytest.approx(wanted) or then.cap == 2 * then.tau or wanted > 1.01 * now.cap


def test_where_distances_are_tiny_the_cap_is_two_tau() -> None:
    """[V3] Below that, nothing that clipping lets through could be called far."""
    assert after([1e-3] * 64, FIXED)[-1].cap == 2.0
    assert after([1e-3] * 64, AUTO)[-1].cap == 2 * after([1e-3] * 64, AUTO)[-1].tau


def test_the_cap_forgets_after_64_steps() -> None:
    """[V3] And needs more than half of them to be moved."""
    assert after([100.0] * 64 + [2.0] * 31, FIXED)[-1].cap == pytest.approx(400.0)
    assert after([100.0] * 64 + [2.0] * 32, FIXED)[-1].cap == pytest.approx(8.0)
    assert len(after([2.0] * 200, FIXED)[-1].medians) == 64


@pytest.mark.parametrize(("contributors", "far", "fires"), [(4, 1, False), (4, 2, True), (5, 2, False), (5, 3, True)])
def test_a_part_is_checked_when_half_are_farther_away_than_the_cap(contributors: int, far: int, fires: bool) -> None:
    """[V3] At exactly half: liars alone, who are fewer, can neither bring it about nor be needed for it."""
    caps = part_taus(2.0, BOUNDS)
    near, away = list(caps), [caps[0], caps[1] * (1 + 1e-12), caps[2], caps[3]]  # at the cap is not beyond it
    reports = [say(away) for _ in range(far)] + [say(near) for _ in range(contributors - far)]
    assert far_parts(reports, 2.0, BOUNDS) == ({1} if fires else set())
    assert far_parts(reports, None, BOUNDS) == set()


@given(st.data(), st.integers(2, 9))
def test_fewer_than_half_cannot_have_a_part_checked(data: st.DataObject, contributors: int) -> None:
    """[V3] Nor can they keep one from being checked from which more than half are far away."""
    liars = data.draw(st.integers(0, (contributors - 1) // 2))
    lies = [say(data.draw(st.lists(claims, min_size=4, max_size=4))) for _ in range(liars)]
    assert far_parts([*everyone_at(1.0, contributors - liars), *lies], 2.0, BOUNDS) == set()
    assert far_parts([*everyone_at(3.0, contributors - liars), *lies], 2.0, BOUNDS) == {0, 1, 2, 3}


def test_tau_follows_a_run_and_inflated_gradients_do_not_push_it() -> None:
    """[A6] A third of the peers send gradients a thousand times as long: τ moves slowly, and not up with them."""
    scenario = dataclasses.replace(SMALL, tau_auto=0.5, steps=24, attack_start=1)
    calm, inflated = (
        finished(dataclasses.replace(scenario, byzantine=liars, attack="inflate:scale=1000")) for liars in (0, 2)
    )
    for simulation in (calm, inflated):
        kept_promises(simulation)
        taus = [record.tau for record in records(simulation)]
        assert taus[0] == simulation.run.parameters.tau
        assert len(set(taus)) > 10, "it does follow"
        assert all(0.98 * now <= then <= 1.02 * now for now, then in pairwise(taus))
    assert records(inflated)[-1].tau <= 1.02 * max(record.tau for record in records(calm))


def _with_cap(scenario: Scenario, cap: float, since: float) -> ProtocolSimulation:
    """A run that has behind it 64 steps of this usual distance."""
    simulation = ProtocolSimulation(scenario)
    tau = simulation.run.parameters.tau

    def aged(state: State[Training]) -> State[Training]:
        return dataclasses.replace(state, scales=Scales(tau, cap, (since,) * 64))

    simulation.states = {peer: aged(state) for peer, state in simulation.states.items()}
    return simulation


def test_beyond_the_cap_a_covered_aggregate_is_found_at_once() -> None:
    """[V3, T6] Colluders absorb its traces, so no public sum shows it; but more than half are too far away."""
    far = dataclasses.replace(
        SMALL, attack="covered-aggregate:shift=1000", attack_start=1, attack_stop=2, steps=2, evaluate_every=2
    )
    usual = pooled(far)
    checked = run_on(_with_cap(far, 4 * usual, usual))
    banned, record = kept_promises(checked), records(checked)[1]
    validators = set(record.members) - set(record.contributors) - set(record.banned)
    owners = set(checked.byzantine) - {checked.numbers[PeerId(peer)] for peer in validators}
    assert set(banned) == owners != set()
    convicted = {j.target for j in record.judgements if j.kind == Kind.AGGREGATE and j.banned is not None}
    assert {checked.numbers[PeerId(peer)] for peer in convicted} == owners
    assert {ban.step for ban in checked.bans} == {1}
    unchecked = finished(far)
    assert unchecked.bans == [], "without a cap nobody looks, until an audit does"


def pooled(scenario: Scenario) -> float:
    """The usual distance in the first step of this run, which nobody attacks."""
    simulation = ProtocolSimulation(scenario)
    next(simulation.steps())
    return simulation.states[simulation.honest[0]].scales.medians[-1]


def test_a_check_that_finds_nothing_harms_nobody() -> None:
    """[V3, T4] With a cap of next to nothing every part of every step is examined, and every owner acquitted."""
    calm = dataclasses.replace(SMALL, byzantine=0, tau=1e-9, steps=3, evaluate_every=3)
    simulation = run_on(_with_cap(calm, 2e-9, 1e-12))
    assert kept_promises(simulation) == {}
    parts = [record.parts for record in records(simulation)]
    assert simulation.trials == sum(parts) > 0
    assert simulation.attempts == 3
