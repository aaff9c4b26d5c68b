"""Lies that codes make room for: what passes which check, and who is banned. [C4, V2, T6]"""

import dataclasses

import pytest
import torch
from torch import Tensor

from tests.protocol.small_runs import SMALL, finished, kept_promises, liars_gone, records
from troth.clip.blocks import BLOCK, INT8, INT16, Code
from troth.clip.centered_clip import judge_center
from troth.clip.fast import acquitted_center
from troth.clip.rounded_center import CONVICT_ROUNDING, acquits
from troth.crypto import PeerId, derive
from troth.protocol.wire.messages import ChargeKind
from troth.workshop.attacks import ATTACKS, make_attack
from troth.workshop.attacks.codes import bent, coarser, leaning, levers
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


@pytest.mark.parametrize("spec", ["bend", "bend:each=true"])
def test_whoever_bends_breaks_no_promise(spec: str) -> None:
    simulation = finished(dataclasses.replace(CODED, attack=spec))
    kept_promises(simulation)
    assert simulation.stalled is None


def test_coarser_numbers_are_malformed_and_mean_what_they_say() -> None:
    """[C4] The same bytes, but for exponents and codes: whoever read them in any form would have these numbers."""
    right_D = CODE.round_center(rows()[0])
    coarse_D, raw = coarser(right_D, INT16, 6)
    assert len(raw) == INT16.length(SIZE)
    assert INT16.unpack(memoryview(raw)) is None
    quanta_D = 2**6 * INT16.quanta(right_D)
    assert torch.equal(coarse_D, torch.from_numpy((right_D.numpy() / quanta_D).round() * quanta_D).float())
    assert INT16.rounding(memoryview(raw)) == pytest.approx(2**6 * INT16.rounding(INT16.pack(right_D)))


def test_nobody_holds_a_coarse_aggregate() -> None:
    """[A3, C4] Its owner is out, as if it had handed out none."""
    simulation = finished(dataclasses.replace(CODED, attack="coarse", steps=6))
    absent = {simulation.numbers[PeerId(peer)] for record in records(simulation) for peer in record.absent}
    assert absent == set(simulation.byzantine)
    assert kept_promises(simulation) == {}


@pytest.mark.parametrize("by", [0, 16])
def test_a_code_has_so_many_bits_to_lose(by: int) -> None:
    with pytest.raises(Exception, match="by must be"):
        make_attack(f"coarse:by={by}")


def test_a_bend_needs_a_class_that_there_is() -> None:
    with pytest.raises(Exception, match="target"):
        Scenario(code="int8", byzantine=3, attack="bend:target=10")
    with pytest.raises(Exception, match="target must not be negative"):
        make_attack("bend:target=-1")
