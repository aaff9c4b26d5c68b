"""The clipping radius, how far an aggregate may be, how long an update: functions of announced numbers that no minority moves."""

import dataclasses
import math
import struct
from itertools import pairwise

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given

from tests.protocol.samples import CLOSE, KEYS, run_of
from tests.protocol.small_runs import SMALL, equals_trusted_server, finished, kept_promises, records
from troth.clip.exact import exact_norm
from troth.crypto import PeerId
from troth.protocol.core.parts import part_bounds
from troth.protocol.core.roles import first_randomness
from troth.protocol.core.roster import (
    CommonState,
    Roster,
    Scales,
    far_parts,
    lower_median,
    part_taus,
    pooled_norm,
    update_factor,
    whole_norm,
)
from troth.protocol.core.run import Parameters, RunError
from troth.protocol.wire.messages import ChargeKind, ReportNumbers
from troth.protocol.wire.primitives import Primitives, ReportTable
from troth.workshop.simulation import ProtocolSimulation

# C contributors, P parts, D coordinates

BOUNDS = part_bounds(60, 4)
FIXED = Parameters(size=60, tau=1.0, byzantine=1)
AUTO = dataclasses.replace(FIXED, tau_auto=0.5, tau_least=0.25, tau_most=4.0)

lengths = st.floats(1e-6, 1e6)
claims = st.floats(-1e300, 1e300)  # whatever a liar may announce


def say(norms_P: list[float], length: float = 1.0) -> ReportNumbers:
    """A report of these distances, about a gradient of this length that is even over all parts."""
    parts = len(norms_P)
    lengths_P = part_taus(length, BOUNDS) if parts == 4 else (length,) * parts
    return ReportNumbers(np.array(lengths_P), np.array(norms_P), np.zeros((parts, 16)))


def table(reports: list[ReportNumbers]) -> ReportTable:
    return Primitives().table(reports)


def everyone_at(distance: float, contributors: int = 5) -> list[ReportNumbers]:
    """Reports of gradients that are all this far from the aggregate, measured over the whole vector."""
    return [say(list(part_taus(distance, BOUNDS))) for _ in range(contributors)]


def after(distances: list[float], parameters: Parameters) -> list[Scales]:
    """The scales of step 0 and of the steps after these, in each of which everyone was equally far away."""
    scales = [Scales.first(parameters)]
    for distance in distances:
        scales.append(scales[-1].after(pooled_norm(table(everyone_at(distance)), BOUNDS), 1.0, parameters))
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
    assert pooled_norm(table([say(list(part_taus(3.0, uneven)))] * 3), uneven) == pytest.approx(3.0)
    assert pooled_norm(table(everyone_at(7.0)), BOUNDS) == pytest.approx(7.0)


@given(st.lists(st.lists(lengths | st.sampled_from([0.0, -0.0]), min_size=4, max_size=4), min_size=1, max_size=9))
def test_the_pooled_norm_is_the_lower_median_of_all_to_the_last_bit(norms_CP: list[list[float]]) -> None:
    """[A6] Records name it, so a zero has no sign."""
    scaled = [norm / np.sqrt(15 / 60) for norms_P in norms_CP for norm in norms_P]
    found = pooled_norm(table([say(norms_P) for norms_P in norms_CP]), BOUNDS)
    assert struct.pack("d", found) == struct.pack("d", lower_median(scaled) + 0.0)


@given(st.data(), st.integers(1, 9), st.integers(1, 6))
def test_a_minority_of_wild_claims_cannot_move_the_median_out_of_the_honest_range(
    data: st.DataObject, honest: int, parts: int
) -> None:
    """[A6, V3] Huge, tiny or negative: what is pooled stays between the least and the largest that is true."""
    bounds = part_bounds(60, parts)
    liars = data.draw(st.integers(0, honest - 1))
    honest_reports = [say(data.draw(st.lists(lengths, min_size=parts, max_size=parts))) for _ in range(honest)]
    lies = [say(data.draw(st.lists(claims, min_size=parts, max_size=parts))) for _ in range(liars)]
    share_P = np.array([(stop - start) / 60 for start, stop in pairwise(bounds)])
    true_CP = np.stack([report.norms_P for report in honest_reports]) / np.sqrt(share_P)
    mixed = data.draw(st.permutations([*honest_reports, *lies]))
    assert true_CP.min() <= pooled_norm(table(mixed), bounds) <= true_CP.max()


def test_a_majority_could() -> None:
    """[A6] Else the test before would prove nothing."""
    assert pooled_norm(table([*everyone_at(1.0, 2), *everyone_at(1e9, 3)]), BOUNDS) > 1e8


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


@pytest.mark.parametrize(
    ("spread", "applied", "outnumbered"),
    [(0.0, 1.0, False), (2e6, None, True), (1e-6, None, True)],
    ids=["zero", "pause far", "pause near"],
)
def test_tau_stands_still_where_distances_say_nothing(spread: float, applied: float | None, outnumbered: bool) -> None:
    """[A6] All zeros, or liars may have reported half in a pause: it moves neither then nor, because of it, later."""
    calm = after([2.0] * 3, AUTO)[-1]
    still = calm
    for _ in range(40):
        still = still.after(spread, applied, AUTO, outnumbered=outnumbered)
    assert (still.tau, still.medians) == (calm.tau, calm.medians)
    assert still.after(2.0, 1.0, AUTO) == dataclasses.replace(still.after(2.0, 1.0, AUTO), tau=calm.tau)
    assert calm.after(2e6, 1.0, AUTO).after(2e6, 1.0, AUTO).after(2e6, 1.0, AUTO).after(2e6, 1.0, AUTO).tau > calm.tau


@given(st.lists(lengths, min_size=1, max_size=40), st.lists(lengths, min_size=1, max_size=80))
def test_where_liars_may_be_half_tau_never_rises(before: list[float], during: list[float]) -> None:
    """[A6] Nor do their distances raise it when more members are back."""
    now = after(before, AUTO)[-1]
    usual = max(now.medians, default=0.0)
    for spread in during:
        then = now.after(spread, 1.0, AUTO, outnumbered=True)
        assert 0.98 * now.tau <= then.tau <= now.tau or then.tau == AUTO.tau_least
        now = then
    assert max(now.medians, default=0.0) <= usual


def test_a_ban_over_a_report_does_not_freeze_a_tau_that_is_too_large() -> None:
    """[A6, G1] Such bans leave L, so that one liar, banned in the first steps, had tau stay at its start for the whole run."""
    loose = dataclasses.replace(AUTO, tau=4.0, tau_least=0.01, tau_most=4.0)
    now = Scales.first(loose).after(1.0, 1.0, loose)
    for _ in range(200):
        now = now.after(1.0, 1.0, loose, outnumbered=True)
    assert now.tau == pytest.approx(0.5)


def test_the_roster_says_when_liars_may_have_reported_half() -> None:
    """[A6] Nine contributors with seven possible liars, or fifteen."""
    run = run_of(16, byzantine=7)
    auto = dataclasses.replace(run, parameters=dataclasses.replace(AUTO, size=1000, byzantine=7))
    scales = Scales(1.0, (1e6,) * 32)
    few, many = (msgspec.structs.replace(CLOSE, spread=1e6, contributors=KEYS[:count]) for count in (14, 15))
    before = CommonState(Roster.founding(run), scales, *first_randomness(run))
    assert before.after(few, auto).scales.tau == 1.0
    assert before.after(many, auto).scales.tau == 1.02


# V3: how far an aggregate may be


def far(reports: list[ReportNumbers], length: float, tau: float = 1e-3) -> set[int]:
    return far_parts(table(reports), length, part_taus(tau, BOUNDS), BOUNDS)


@pytest.mark.parametrize(("contributors", "away", "fires"), [(4, 2, False), (4, 3, True), (5, 2, False), (5, 3, True)])
def test_a_part_is_checked_when_more_than_half_are_too_far_away(contributors: int, away: int, fires: bool) -> None:
    """[V3] The lower median: of four, three. At the limit is not beyond it."""
    limit = [4 * length for length in part_taus(2.0, BOUNDS)]
    beyond = [limit[0], math.nextafter(limit[1], math.inf), limit[2], limit[3]]
    reports = [say(beyond, 2.0) for _ in range(away)] + [say(limit, 2.0) for _ in range(contributors - away)]
    assert far(reports, 2.0) == ({1} if fires else set())


@pytest.mark.parametrize(
    ("own", "tau", "length", "limit"),
    [
        (3.0, 1.0, 3.0, 12.0),  # as long as gradients are there
        (0.5, 1.0, 0.5, 4.0),  # the radius
        (0.0, 1e-3, 10.0, 2.0),  # zero in more than half of the gradients: a twentieth of an even part
        (0.0, 1e-3, 0.0, 4e-3),  # all gradients are zero
        (2.0**400, 1.0, 2.0**400, 2.0**402),  # the largest number that is a message
    ],
)
def test_what_far_means(own: float, tau: float, length: float, limit: float) -> None:
    """[V3] `4·max(M_p, τ_p, 0.05·√(d/D)·M)`, from the first step on."""
    at, beyond = list(part_taus(limit * (1 - 1e-12), BOUNDS)), list(part_taus(limit * (1 + 1e-12), BOUNDS))
    assert far([say(at, own)] * 5, length, tau) == set()
    assert far([say(beyond, own)] * 5, length, tau) == {0, 1, 2, 3}


@given(st.data(), st.integers(2, 9))
def test_fewer_than_half_cannot_have_a_part_checked(data: st.DataObject, contributors: int) -> None:
    """[V3] Nor can they keep one from being checked from which more than half are far away, unless all were shorter."""
    liars = data.draw(st.integers(0, (contributors - 1) // 2))
    wild = st.lists(st.floats(0, 2.0**400), min_size=4, max_size=4)
    lies = [
        ReportNumbers(np.array(data.draw(wild)), np.array(data.draw(wild)), np.zeros((4, 16))) for _ in range(liars)
    ]
    honest = contributors - liars
    near, away = [say(list(part_taus(d, BOUNDS)), 1.0) for d in (4.0 * (1 - 1e-12), 4.0 * (1 + 1e-12))]
    length = lower_median([*[1.0] * honest, *(data.draw(st.floats(0, 2.0**400)) for _ in lies)])
    assert length == 1.0 or not lies or length <= 1.0
    assert far([*[near] * honest, *lies], length) == set()
    assert far([*[away] * honest, *lies], length) == {0, 1, 2, 3}


# U3: how long an update may be


def test_the_first_updates_are_limited_by_their_gradients_and_later_ones_by_those_before() -> None:
    """[U3] `2·max(M, τ)` eight times, then `2·max(lower median of the last 64 updates, M/16)`."""
    scales = Scales(1.0)
    for update in range(8):
        assert (scales.updates, scales.longest_update(3.0), scales.longest_update(0.5)) == (update, 6.0, 2.0)
        scales = scales.after(1.0, float(update), FIXED)
    assert scales.longest_update(3.0) == 6.0  # 0, 1, 2, 3 | 4, 5, 6, 7
    assert scales.longest_update(160.0) == 20.0
    assert scales.longest_update(2.0**400) == 2.0**397


def test_the_limit_looks_at_64_updates_and_pauses_do_not_count() -> None:
    """[U3, G2] Half of them, covered, do not move it; and a step without an update changes nothing of it."""
    scales = Scales(1.0)
    for applied in (5.0,) * 64 + (10.0,) * 32:
        scales = scales.after(1.0, applied, FIXED)
    assert (scales.longest_update(0.0), len(scales.applied), scales.updates) == (10.0, 64, 96)
    assert scales.after(1.0, None, FIXED) == scales
    assert scales.after(1.0, 10.0, FIXED).longest_update(0.0) == 20.0


@pytest.mark.parametrize(
    ("norm", "longest", "factor"),
    [(0.0, 0.0, 1.0), (0.0, 2.0, 1.0), (2.0, 2.0, 1.0), (4.0, 2.0, 0.5), (1e30, 0.0, 0.0), (2.0**400, 2.0, 2.0**-399)],
)
def test_an_update_that_is_too_long_is_cut(norm: float, longest: float, factor: float) -> None:
    """[U3] `min(1, C/‖ĝ‖)`; nothing is divided by zero, since what is not longer is not divided."""
    assert update_factor(norm, longest) == factor


def test_a_whole_length_follows_from_those_of_its_parts() -> None:
    """[U3, V3] Also of the largest that a message can hold, and of the smallest."""
    assert whole_norm([3.0, 4.0]) == 5.0
    assert whole_norm([]) == whole_norm([0.0, 0.0]) == 0.0
    assert whole_norm([2.0**400] * 1024) == 2.0**405
    assert whole_norm([2.0**-149] * 4) == 2.0**-148


def test_the_factor_is_rounded_once() -> None:
    """[U3] In float32, as the optimizer's numbers are; one that is too small for it moves nothing."""
    vector_D = torch.tensor([3.0, -7.0, 1e-40])
    assert Primitives().scaled(vector_D, 1.0) is vector_D
    assert torch.equal(Primitives().scaled(vector_D, 0.1), vector_D * torch.tensor(0.1, dtype=torch.float32))
    assert not Primitives().scaled(vector_D, 1e-60).any()


finite32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(finite32, max_size=70))
def test_a_length_is_right_to_the_last_digits_and_the_same_in_any_memory(numbers: list[float]) -> None:
    """[U3, A3] Against exact sums: subnormal, huge or zero; and whatever strides and alignment the array has."""
    row_D = np.array(numbers, dtype=np.float32)
    exact = math.sqrt(math.fsum(float(x) * float(x) for x in row_D))
    assert exact_norm(row_D) == pytest.approx(exact, rel=1e-14, abs=0)
    scattered = np.zeros(3 * len(numbers) + 1, dtype=np.float32)[1:]
    scattered[::3] = row_D
    assert exact_norm(scattered[::3]) == exact_norm(row_D)


@pytest.mark.parametrize("size", [1, 2**15 - 1, 2**15, 2**15 + 1, 3 * 2**15 + 17])
@pytest.mark.parametrize("scale", [1e-45, 1.0, 1e30])
def test_long_vectors_have_the_same_length_however_many_threads(size: int, scale: float) -> None:
    """[U3] No library chooses the order of the additions."""
    row_D = torch.randn(size, generator=torch.Generator().manual_seed(size)).numpy() * np.float32(scale)
    before, lengths = torch.get_num_threads(), set()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        lengths.add(exact_norm(row_D))
    torch.set_num_threads(before)
    assert len(lengths) == 1
    assert lengths.pop() == pytest.approx(math.sqrt(math.fsum(float(x) ** 2 for x in row_D)), rel=1e-13, abs=0)


def test_the_order_of_additions_is_pinned() -> None:
    """[U3] Lanes of 2¹⁴, sixteen deep, then halves onto halves: another order would be another last digit, and another model."""
    row_D = (np.arange(1, 300_001) * 7919 * 17 % 10_007).astype(np.float32) / np.float32(17)
    assert exact_norm(row_D).hex() == "0x1.6b8a87e077fccp+17"
    assert exact_norm(row_D) != math.sqrt(math.fsum(float(x) ** 2 for x in row_D)), "else any good sum would do"


@pytest.mark.long
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


COVERED = dataclasses.replace(SMALL, attack="covered-aggregate:shift=1e30", seed=6)


@pytest.mark.long
@pytest.mark.parametrize(("when", "steps"), [(0, 2), (20, 22), (7, 8)], ids=["first", "twentieth", "last"])
def test_a_covered_aggregate_far_away_is_found_at_once(when: int, steps: int) -> None:
    """[V3, T6] Colluders absorb its traces, so that no public sum shows it; but more than half are too far away. Its
    owners are banned in that step, whichever it is, and the model is the one that honest owners would have made."""
    once = dataclasses.replace(COVERED, attack_start=when, attack_stop=when + 1, steps=steps, evaluate_every=steps)
    simulation = finished(once)
    banned, record = kept_promises(simulation), records(simulation)[when]
    convicted = {j.target for j in record.judgements if j.kind == ChargeKind.AGGREGATE and j.banned == j.target}
    contributing = set(simulation.byzantine) - {
        simulation.numbers[PeerId(peer)] for peer in set(record.members) - set(record.contributors) - convicted
    }
    assert {simulation.numbers[PeerId(peer)] for peer in convicted} == contributing != set()
    assert contributing <= banned.keys()
    assert {ban.step for ban in simulation.bans if ban.peer in contributing} == {when}
    assert equals_trusted_server(simulation)


SHIFTED = dataclasses.replace(
    SMALL,
    peers=16,
    byzantine=7,
    tau=0.3,
    attack="covered-aggregate:shift=3",
    attack_start=12,
    steps=14,
    evaluate_every=14,
)


@pytest.mark.long
def test_updates_below_the_limit_move_the_model_no_farther_than_twice_as_usual() -> None:
    """[U3] A covered shift of a few τ passes V3 until an audit finds it; the update is cut to its limit meanwhile."""
    simulation = finished(SHIFTED)
    by_step = [record for record in records(simulation) if not record.closing]
    for step, record in enumerate(by_step):
        applied = [old.norm * old.factor for old in by_step[:step] if old.updated]
        longest = 2 * (
            max(record.length, record.tau) if len(applied) < 8 else max(lower_median(applied[-64:]), record.length / 16)
        )
        assert record.factor == min(1.0, longest / record.norm)
        assert record.applied is None or record.applied <= longest * (1 + 1e-15)
    assert min(record.factor for record in by_step) < 1, "else nothing was cut, and this shows nothing"


@pytest.mark.long
def test_anyone_replays_the_model_from_records_and_aggregates() -> None:
    """[U1, U3] The aggregate's bits, the record's factor, the optimizer's step: nothing else is needed."""
    simulation = ProtocolSimulation(SHIFTED)
    witness, work = simulation.honest[0], simulation.peers[simulation.honest[0]].work
    training, cut = simulation.states[witness].training, 0
    for _ in simulation.steps():
        state = simulation.states[witness]
        if state.closed:
            break
        record, kept = records(simulation)[-1], state.audit_records[state.step - 1]
        assert record.norm == whole_norm(
            exact_norm(kept.aggregate_D[start:stop].numpy()) for start, stop in pairwise(kept.bounds)
        )
        training = work.update(training, Primitives().scaled(kept.aggregate_D, record.factor), record.updates - 1)
        assert torch.equal(training.parameters_D, state.training.parameters_D)
        cut += record.factor < 1
    assert cut, "else the factor would not matter"


def test_a_check_that_finds_nothing_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """[V3, T4] Where next to nothing counts as far, every part of every step is examined, and every owner acquitted."""
    monkeypatch.setattr("troth.protocol.core.roster.FAR_FACTOR", 1e-12)
    simulation = finished(dataclasses.replace(SMALL, byzantine=0, steps=3, evaluate_every=3))
    assert kept_promises(simulation) == {}
    parts = [record.parts for record in records(simulation) if not record.closing]
    assert simulation.trials == sum(parts) > 0
    assert simulation.attempts == 3 + 1  # and the closing step
