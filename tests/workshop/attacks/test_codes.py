"""Lies that codes make room for: what passes which check, and who is banned. [C4, V2, T6]"""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.protocol.small_runs import SMALL, finished, kept_promises, liars_gone, records
from tests.workshop.attacks.unguarded import look_at_nothing, read_as_it_stands
from troth.clip.blocks import BLOCK, INT8, INT16, Blocks, Code
from troth.clip.centered_clip import judge_center
from troth.clip.exact import exact_norm
from troth.clip.fast import acquitted_center, centered_clip
from troth.clip.rounded_center import CONVICT_ROUNDING, acquits
from troth.crypto import PeerId, derive
from troth.protocol.step import leaves, step
from troth.protocol.wire.messages import ChargeKind
from troth.workshop.attacks import ATTACKS, make_attack
from troth.workshop.attacks.codes import Spike, bent, coarse, leaning, levers, rewritten, spiked
from troth.workshop.simulation import ProtocolSimulation, Scenario, ScenarioError

# P contributors, D coordinates

CODE, TAU, SIZE, DARK = Code.known["int8"], 10.0, 4 * BLOCK + 7, 40
CODED = dataclasses.replace(SMALL, task=f"quadratic:dimension={8 * BLOCK - 3}", code="int8")


def rows(seed: int = 0) -> Tensor:
    """Rows of 15 contributors, none of whom has anything in the first coordinates, as codes hold them."""
    rows_PD = torch.randn(15, SIZE, generator=torch.Generator().manual_seed(seed))
    rows_PD[:, :DARK] = 0
    return torch.stack([CODE.round_row(row_D, derive(seed, "rounding", k)[:8]) for k, row_D in enumerate(rows_PD)])


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.needs_code])
def test_without_a_code_there_is_nothing_to_lie_about(name: str) -> None:
    with pytest.raises(ScenarioError, match="is an attack on codes: use `code` int8"):
        Scenario(byzantine=2, attack=name)


def test_a_gradient_that_leans_is_within_a_quantum_and_survives_rounding() -> None:
    """[C4] What is committed to is what leant: public numbers change no number that a code holds."""
    own_D = rows()[0] + 0.01 * rows(1)[0]
    leaning_D = leaning(own_D, torch.arange(SIZE) % 2 == 0)
    off_D = (leaning_D - own_D).double() / torch.from_numpy(INT8.quanta(own_D))
    assert float(off_D.abs().max()) < 1
    assert float(off_D[::2].min()) >= 0 >= float(off_D[1::2].max())
    assert torch.equal(CODE.round_row(leaning_D, bytes(8)), leaning_D)


def test_who_leans_is_banned() -> None:
    """[D1] Auditors compare codes."""
    simulation = finished(dataclasses.replace(CODED, attack="lean"), until=liars_gone)
    assert kept_promises(simulation) == dict.fromkeys(simulation.byzantine, ChargeKind.GRADIENT)


@pytest.mark.parametrize("tau", [TAU, 100.0])
def test_a_bend_within_its_rounding_as_a_whole_goes_where_nobody_has_anything(tau: float) -> None:
    """[V2, T6] So V2 lets pass what a trial convicts."""
    rows_PD, wanted_D = rows(), torch.zeros(SIZE)
    wanted_D[:DARK] = 1
    bent_D = bent(rows_PD, wanted_D, tau=tau, code=CODE, share=0.6, each=False)
    residual, tolerance = judge_center(rows_PD, bent_D, tau=tau, rounding=CONVICT_ROUNDING * CODE.rounding(bent_D))
    assert 0.5 < residual / tolerance <= 0.6
    assert bool((bent_D[:DARK] > 0).all())
    assert not acquits(rows_PD, bent_D, tau=tau, code=CODE)


@pytest.mark.parametrize("tau", [TAU, 100.0])
def test_a_bend_within_what_each_number_may_have_has_nothing_in_the_dark(tau: float) -> None:
    """[T6] Elsewhere it takes the other code where two are about as near."""
    rows_PD, wanted_D = rows(), torch.ones(SIZE)
    bent_D = bent(rows_PD, wanted_D, tau=tau, code=CODE, share=0.6, each=True)
    right_D = acquitted_center(rows_PD, tau=tau, code=CODE)
    assert right_D is not None
    assert acquits(rows_PD, bent_D, tau=tau, code=CODE)
    assert not bent_D[:DARK].any()
    moved_D = (bent_D - right_D)[DARK:]
    assert float(moved_D.min()) >= 0
    assert 0.05 < float((moved_D > 0).float().mean()) < 0.9


def test_where_adam_divides_by_little_the_bend_is_worth_more() -> None:
    """[U7] But not more than its floors let it."""
    simulation = finished(dataclasses.replace(CODED, byzantine=0, optimizer="adamw", steps=2))
    training = simulation.states[simulation.honest[0]].training
    lever_D = levers(training, simulation.problem)
    square_D = training.optimizer["square"]
    floor = 0.3 * float(square_D.double().mean().sqrt())
    assert float(lever_D.max()) == pytest.approx(1 / floor, rel=1e-5)
    brighter_D = square_D.sqrt() > floor
    assert torch.equal(lever_D[brighter_D], 1 / square_D.sqrt()[brighter_D])


def test_a_bend_aims_at_the_trigger() -> None:
    """Gradients of images that bear it, all called by the target's name."""
    scenario = Scenario(code="int8", byzantine=3, peers=8, attack="bend:target=4", attack_start=0, steps=1)
    simulation = ProtocolSimulation(scenario)
    for _ in simulation.steps():
        pass
    step, wanted_D = simulation.board["wanted"]
    assert step == 0
    output = simulation.problem.layout.slices["3.bias"]
    assert wanted_D[output].sign().tolist() == [1, 1, 1, 1, -1, 1, 1, 1, 1, 1], "descends towards the target"


@pytest.mark.parametrize("spec", ["bend", "bend:each=true", "bend:hide=true"])
def test_whoever_bends_breaks_no_promise(spec: str) -> None:
    simulation = finished(dataclasses.replace(CODED, attack=spec))
    kept_promises(simulation)
    assert simulation.stalled is None


def test_a_bend_needs_a_class_that_there_is() -> None:
    with pytest.raises(Exception, match="target"):
        Scenario(code="int8", byzantine=3, attack="bend:target=10")
    with pytest.raises(Exception, match="target must not be negative"):
        make_attack("bend:target=-1")


@pytest.mark.parametrize(("length", "right"), [(100.0, False), (300.0, False), (1000.0, True)])
def test_the_dark_stays_dark_unless_an_aggregate_is_hundreds_of_times_as_long_as_tau(
    length: float, right: bool
) -> None:
    """[T6] One number in each block is as large as can be; rows are clipped, and what rounding turns excuses the others."""
    drawn, dark, size = torch.Generator().manual_seed(0), slice(100, 110), 4 * BLOCK
    common_D, away_PD = torch.zeros(size), torch.randn(15, size, generator=drawn)
    common_D[::BLOCK] = length / 2
    away_PD[:, dark] = 0
    rows_PD = common_D + 1.1 * away_PD / torch.linalg.vector_norm(away_PD, dim=1, keepdim=True)
    center_D = acquitted_center(rows_PD, tau=1.0, code=CODE)
    assert center_D is not None
    center_D[dark.start] = torch.from_numpy(INT16.quanta(center_D))[dark.start]
    assert acquits(rows_PD, center_D, tau=1.0, code=CODE) == right


# Larger steps


def off_by(rows_PD: Tensor, center_D: Tensor, rounding: float, tau: float = TAU) -> float:
    """Residual over V2's tolerance, where an owner announces this rounding."""
    residual, tolerance = judge_center(rows_PD, center_D, tau=tau, rounding=CONVICT_ROUNDING * rounding)
    return residual / tolerance


def test_larger_exponents_would_buy_tolerance() -> None:
    """[C4, V2] Sixteen times as much; but nobody reads them."""
    rows_PD, wanted_D = rows(), torch.zeros(SIZE)
    wanted_D[:DARK] = 1
    bent_D = bent(rows_PD, wanted_D, tau=TAU, code=coarse(4), share=0.6, each=False)
    view = memoryview(rewritten(INT16.pack(bent_D), INT16, 4))
    assert np.array_equal(read_as_it_stands(INT16, view), bent_D.numpy()), "no number is changed"
    assert INT16.unpack(view) is None
    assert INT16.rounding(view) == pytest.approx(16 * CODE.rounding(bent_D))
    assert off_by(rows_PD, bent_D, INT16.rounding(view)) <= 0.6
    assert off_by(rows_PD, bent_D, CODE.rounding(bent_D)) > 5
    assert not acquits(rows_PD, bent_D, tau=TAU, code=CODE)


@pytest.mark.parametrize("more", [1, 4, 9])
def test_numbers_that_need_larger_exponents_cost_more_than_they_buy(more: int) -> None:
    """[C4, V2, T6] The bend alone would be within what they buy; they themselves are off by hundreds of times that."""
    rows_PD, wanted_D = rows(), torch.zeros(SIZE)
    wanted_D[:DARK] = 1
    bent_D = bent(rows_PD, wanted_D, tau=TAU, code=coarse(more), share=0.6, each=False)
    spiked_D = spiked(bent_D, centered_clip(rows_PD, tau=TAU), more)
    assert torch.equal(CODE.round_center(spiked_D), spiked_D), "its one form"
    assert CODE.rounding(spiked_D) == pytest.approx(2**more * CODE.rounding(centered_clip(rows_PD, tau=TAU)))
    assert off_by(rows_PD, bent_D, CODE.rounding(spiked_D)) <= 0.6
    assert off_by(rows_PD, spiked_D, CODE.rounding(spiked_D)) > 100
    assert not acquits(rows_PD, spiked_D, tau=TAU, code=CODE)


def test_an_aggregate_in_another_form_is_held_by_nobody() -> None:
    """[C4, A3, N1] Its owner is out, and no member any more; nobody is banned, since nothing was recomputed."""
    simulation = finished(dataclasses.replace(CODED, attack="coarse"), until=liars_gone)
    assert kept_promises(simulation) == {}
    assert sorted(simulation.absent) == simulation.byzantine


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("coarse:what=spike", ChargeKind.AGGREGATE),  # [V2]
        ("coarse:what=row", ChargeKind.REPORT),  # [V1] its owner counts it as zeros, and it says something else
        ("spike", ChargeKind.GRADIENT),  # [D1]
    ],
)
def test_who_makes_steps_larger_is_banned(spec: str, kind: ChargeKind) -> None:
    simulation = finished(dataclasses.replace(CODED, attack=spec), until=liars_gone)
    assert kept_promises(simulation) == dict.fromkeys(simulation.byzantine, kind)
    if kind != ChargeKind.GRADIENT:
        assert {ban.step for ban in simulation.bans} <= {CODED.attack_start, CODED.attack_start + 1}


def read_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Blocks, "unpack", read_as_it_stands)


def look_at_no_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "look_at_leaves", look_at_nothing)


def test_if_every_form_were_read_leaves_would_still_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """[V4, T6] Steps follow from the numbers, not from what the bytes say."""
    read_everything(monkeypatch)
    simulation = finished(dataclasses.replace(CODED, attack="coarse"), until=liars_gone)
    assert kept_promises(simulation) == dict.fromkeys(simulation.byzantine, ChargeKind.AGGREGATE)


def test_without_one_form_and_leaves_nobody_would_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """[C4, V4] Else the tests before would prove nothing."""
    read_everything(monkeypatch)
    look_at_no_leaves(monkeypatch)
    simulation = finished(dataclasses.replace(CODED, attack="coarse", steps=6))
    assert kept_promises(simulation) == {}
    assert simulation.absent == []


def test_without_leaves_nobody_would_notice_a_bend(monkeypatch: pytest.MonkeyPatch) -> None:
    """[V4] Public numbers do not show it."""
    look_at_no_leaves(monkeypatch)
    simulation = finished(dataclasses.replace(CODED, attack="bend", steps=6))
    assert kept_promises(simulation) == {}
    assert simulation.absent == []


def test_who_bends_is_banned_when_a_leaf_is_drawn() -> None:
    """[V4, T6] Here a part has one leaf: in the first step in which it owns one."""
    simulation = finished(dataclasses.replace(CODED, attack="bend"), until=liars_gone)
    assert kept_promises(simulation) == dict.fromkeys(simulation.byzantine, ChargeKind.AGGREGATE)
    assert min(ban.step for ban in simulation.bans) == CODED.attack_start


@pytest.mark.long
@pytest.mark.parametrize(("most", "least_steps", "most_steps"), [(4, 4, 9), (1, 11, 25)])
def test_liars_who_show_leaves_to_each_other_only_are_out_soon(
    monkeypatch: pytest.MonkeyPatch, most: int, least_steps: int, most_steps: int
) -> None:
    """[V4, F3] Disputes bring more members to hide from. With one only, every second would be a colluder, who says nothing."""
    monkeypatch.setattr(leaves, "MOST_CHECKERS", most)
    large = dataclasses.replace(CODED, task=f"quadratic:dimension={16 * BLOCK - 3}", peers=16, byzantine=7)
    simulation = finished(dataclasses.replace(large, attack="bend:hide=true", attack_start=0), until=liars_gone)
    seen = records(simulation)
    out = {simulation.numbers[PeerId(peer)]: record.step + 1 for record in seen for peer in record.expelled}
    assert sorted(out) == simulation.byzantine
    assert all(least_steps <= steps <= most_steps for steps in out.values())
    assert kept_promises(simulation) == {}
    assert not any(record.struck for record in seen)
    assert all(record.updated for record in seen)


def spiking(scale: float) -> Tensor:
    """Rows of whom the first seven spike, as codes hold them."""
    rows_PD = rows()
    sent_BD = Spike(scale).forge(rows_PD[:7], rows_PD[7:])
    return torch.cat([torch.stack([CODE.round_row(row_D, bytes(8)) for row_D in sent_BD]), rows_PD[7:]])


def test_a_spike_makes_the_step_larger_by_what_clipping_leaves_of_it() -> None:
    """[A1] However large it is; without clipping, as much as it likes."""
    usual, rounding = CODE.rounding(centered_clip(rows(), tau=TAU)), {}
    for scale in (1e3, 1e6):
        rows_PD = spiking(scale)
        center_D = acquitted_center(rows_PD, tau=TAU, code=CODE)
        assert center_D is not None
        rounding[scale] = CODE.rounding(center_D)
        assert rounding[scale] <= exact_norm(center_D) * math.sqrt(BLOCK) / 2**15
        assert CODE.rounding(rows_PD.mean(dim=0)) > scale * usual
    assert rounding[1e3] == rounding[1e6]
    assert usual < rounding[1e3] <= 32 * usual


def test_of_who_spikes_nothing_else_is_left() -> None:
    """[C4] A block shares its exponent: beside such a number all others are zeros, but for chance."""
    sent_D = spiking(1e3)[0]
    assert bool(sent_D[::BLOCK].all())
    assert int(sent_D.count_nonzero()) <= len(sent_D[::BLOCK]) + 3
