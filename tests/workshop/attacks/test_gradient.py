"""Every gradient attack against its formula."""

import math
from collections.abc import Callable
from itertools import count
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import Tensor

from troth.attacks import (
    ATTACKS,
    AttackError,
    AttackSchedule,
    Coalition,
    DelayedGradient,
    GradientAttack,
    InnerProduct,
    InnerProductSmall,
    LabelFlip,
    RandomDirection,
    SignFlip,
    alie_deviations,
    make_attack,
)
from troth.crypto import Seed, Stream, derive, stream
from troth.protocol.core.parts import part_bounds
from troth.protocol.step.audits import deviations
from troth.protocol.wire.messages import ReportNumbers
from troth.specs import SpecError
from troth.training import Problem, make_task
from troth.training.problem import NOISE
from troth.training.task import with_options
from troth.workshop.attacks import gradient_lies
from troth.workshop.attacks.gradient_lies import Hide, Inflate, Nudge

# B colluders, H honest peers, D coordinates
Forge = Callable[[Tensor, Tensor], Tensor]


def forger(attack: GradientAttack, members: int = 7, seed: int = 0) -> Forge:
    """Rows that the members of a fresh coalition send, step after step."""
    coalition = Coalition([attack], AttackSchedule(), range(members), derive(seed, "coalition"))
    step = count()
    return lambda own_BD, honest_HD: coalition.gradients(next(step), own_BD, honest_HD)


def rows(name: str, count: int, size: int = 40) -> Tensor:
    return torch.from_numpy(stream(3, name).normal(count * size)).float().view(count, size)


OWN_BD, HONEST_HD = rows("own", 7), rows("honest", 9)


def test_sign_flip() -> None:
    forged_BD = forger(SignFlip(scale=10.0))(OWN_BD, HONEST_HD)
    assert torch.equal(forged_BD, torch.from_numpy(OWN_BD.numpy() * np.float32(-10)))


def test_sign_flip_is_a_thousandfold_by_default() -> None:
    assert SignFlip().scale == 1000


def test_random_direction_is_one_for_all_colluders_and_all_steps() -> None:
    forge = forger(RandomDirection())
    first_BD, later_BD = forge(OWN_BD, HONEST_HD), forge(rows("later", 7), HONEST_HD)
    assert first_BD.shape == OWN_BD.shape
    assert all(torch.equal(row_D, first_BD[0]) for row_D in first_BD)
    torch.testing.assert_close(first_BD[0] / first_BD[0].norm(), later_BD[0] / later_BD[0].norm())


def test_a_direction_is_drawn_once_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for ten million numbers, in every step also before the attack, was most of what a step took on a GPU."""
    drawn: list[str] = []

    def noted(seed: Seed, purpose: str) -> Stream:
        drawn.append(purpose)
        return stream(seed, purpose)

    monkeypatch.setattr(gradient_lies, "stream", noted)
    forge, own_BD = RandomDirection(scale=1).begin(derive(3, "another run")), torch.ones(2, 8)
    rows = [forge([0, 1], own_BD, own_BD)[0] for _ in range(3)]
    assert drawn == ["random direction"]
    assert all(torch.equal(row_D, rows[0]) for row_D in rows)
    other_D = RandomDirection(scale=1).begin(derive(4, "another run"))([0, 1], own_BD, own_BD)[0]
    assert not torch.equal(other_D, rows[0])


def test_random_direction_is_scale_times_the_mean_norm_long() -> None:
    forged_BD = forger(RandomDirection(scale=5.0))(OWN_BD, HONEST_HD)
    mean_norm = float(np.linalg.norm(OWN_BD.numpy().astype(np.float64), axis=1).mean())
    assert float(forged_BD[0].double().norm()) == pytest.approx(5 * mean_norm, rel=1e-5)


def test_random_direction_follows_from_the_seed_and_not_from_the_gradients() -> None:
    one_D = forger(RandomDirection())(OWN_BD, HONEST_HD)[0]
    same_D = forger(RandomDirection())(OWN_BD, HONEST_HD)[0]
    other_D = forger(RandomDirection(), seed=1)(OWN_BD, HONEST_HD)[0]
    assert torch.equal(one_D, same_D)
    assert abs(float(torch.cosine_similarity(one_D, other_D, dim=0))) < 0.6
    assert abs(float(torch.cosine_similarity(one_D, OWN_BD.mean(dim=0), dim=0))) < 0.6


def test_a_nudge_moves_every_coordinate_by_a_share_of_itself_against_the_honest_mean() -> None:
    forged_BD = forger(Nudge(size=0.03))(OWN_BD, HONEST_HD)
    own, honest = (rows_ND.numpy().astype(np.float64) for rows_ND in (OWN_BD, HONEST_HD))
    right_BD = own - 0.03 * np.abs(own) * np.sign(honest.mean(axis=0))
    np.testing.assert_allclose(forged_BD.numpy(), right_BD, rtol=1e-5, atol=1e-6)


def test_a_hidden_lie_is_a_share_of_what_jurors_let_pass_in_every_part() -> None:
    """Of 2.5h·G (SPEC D3), against the honest mean; G is checked against the auditors' own function."""
    honest_HD, own_BD = HONEST_HD.clone(), OWN_BD.clone()
    own_BD[0, :20] *= 1e-4  # short parts: the usual norms count there
    honest_HD[:, 10] += 5
    forged_BD = forger(Hide(deviation=0.01, share=0.5))(own_BD, honest_HD)
    rows_PD, bounds = torch.cat([own_BD, honest_HD]).double(), part_bounds(40, 16)
    away_PD = (rows_PD - rows_PD.float().mean(dim=0)).numpy()
    norms_PP = np.sqrt(np.add.reduceat(away_PD**2, bounds[:-1], axis=1))
    usual_P = np.sort(norms_PP, axis=0)[7]
    for own_D, forged_D in zip(own_BD, forged_BD, strict=True):
        lie_D, mean_D = (forged_D - own_D).double().numpy(), honest_HD.double().mean(dim=0).numpy()
        lengths_P, means_P = (np.sqrt(np.add.reduceat(each_D**2, bounds[:-1])) for each_D in (lie_D, mean_D))
        far = ReportNumbers(lengths_P, np.zeros(16), np.zeros((16, 1)))
        none = ReportNumbers(np.zeros(16), np.zeros(16), np.zeros((16, 1)))
        found_P = deviations(far, none, own_D, bounds, np.full(16, np.inf), usual_P)  # lengths of the lie over G
        np.testing.assert_allclose(found_P, 0.5 * 2.5 * 0.01, rtol=1e-3)
        np.testing.assert_allclose(
            lie_D / np.repeat(lengths_P, np.diff(bounds)), -mean_D / np.repeat(means_P, np.diff(bounds)), atol=1e-3
        )


def test_a_hidden_lie_waits_for_its_step() -> None:
    coalition = Coalition([Hide()], AttackSchedule(start=3), range(7), derive(0, "coalition"))
    sent = [coalition.gradients(step, OWN_BD, HONEST_HD) for step in range(5)]
    assert [torch.equal(one_BD, OWN_BD) for one_BD in sent] == [True, True, True, False, False]


def test_an_inflated_gradient_points_where_it_did() -> None:
    assert torch.equal(forger(Inflate(scale=4.0))(OWN_BD, HONEST_HD), OWN_BD * 4)


def test_label_flip_turns_labels_round_and_nothing_else() -> None:
    task = make_task("digits")
    batch = {"images": torch.ones(10, 1, 8, 8), "labels": torch.arange(10)}
    poisoned = LabelFlip().poison(task, batch)
    assert poisoned["labels"].tolist() == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert poisoned["images"] is batch["images"]
    assert batch["labels"].tolist() == list(range(10)), "the honest batch stays as it was"


def test_label_flip_sends_the_gradient_it_computed() -> None:
    assert torch.equal(forger(LabelFlip())(OWN_BD, HONEST_HD), OWN_BD)


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in ("label-flip", "backdoor", "sandbagger")])
def test_no_other_attack_poisons_batches(name: str) -> None:
    batch = {"images": torch.ones(1), "labels": torch.arange(1)}
    assert make_attack(name).poison(make_task("digits"), batch) is batch


def test_delayed_gradient_sends_what_was_computed_delay_steps_ago() -> None:
    forge = forger(DelayedGradient(delay=3), members=2)
    history = [rows(f"step {step}", 2) for step in range(10)]
    sent = [forge(own_BD, HONEST_HD) for own_BD in history]
    for step in range(10):
        assert torch.equal(sent[step], history[max(0, step - 3)]), f"step {step}"


def test_delayed_gradients_of_two_runs_are_kept_apart() -> None:
    attack = DelayedGradient(delay=5)
    first, second = forger(attack), forger(attack)
    first(OWN_BD, HONEST_HD)
    later_BD = rows("later", 7)
    assert torch.equal(second(later_BD, HONEST_HD), later_BD)


@pytest.mark.parametrize(
    ("attack", "epsilon"), [(InnerProduct(), 0.6), (InnerProductSmall(), 0.1), (InnerProduct(epsilon=2.5), 2.5)]
)
def test_inner_product_manipulation(attack: InnerProduct, epsilon: float) -> None:
    forged_BD = forger(attack)(OWN_BD, HONEST_HD)
    right_D = -epsilon * HONEST_HD.numpy().astype(np.float64).mean(axis=0)
    assert forged_BD.shape == OWN_BD.shape
    for row_D in forged_BD:
        np.testing.assert_allclose(row_D.numpy(), right_D, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("byzantine", [3, 7])
def test_a_little_is_enough(byzantine: int) -> None:
    """μ − zσ with the unbiased σ over the honest peers (Baruch et al. 2019)."""
    own_BD, honest_HD = rows("own", byzantine), rows("honest", 16 - byzantine)
    forged_BD = forger(make_attack("alie"), byzantine)(own_BD, honest_HD)
    honest = honest_HD.numpy().astype(np.float64)
    supporters = math.floor(16 / 2 + 1) - byzantine
    z = NormalDist().inv_cdf((16 - byzantine - supporters) / (16 - byzantine))
    right_D = honest.mean(axis=0) - z * honest.std(axis=0, ddof=1)
    assert forged_BD.shape == own_BD.shape
    for row_D in forged_BD:
        np.testing.assert_allclose(row_D.numpy(), right_D, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("byzantine", "z"), [(7, 0.765), (3, 0.097)])
def test_alie_deviations_of_sixteen_peers(byzantine: int, z: float) -> None:
    assert round(alie_deviations(16, byzantine), 3) == z


@pytest.mark.parametrize("name", list(ATTACKS))
def test_forging_leaves_its_inputs_alone(name: str) -> None:
    own_BD, honest_HD = OWN_BD.clone(), HONEST_HD.clone()
    forger(make_attack(name))(own_BD, honest_HD)
    assert torch.equal(own_BD, OWN_BD)
    assert torch.equal(honest_HD, HONEST_HD)


@pytest.mark.long
@pytest.mark.parametrize("name", list(ATTACKS))
def test_every_attack_fits_seven_of_sixteen_on_digits(name: str) -> None:
    attack = make_attack(name)
    attack.check(make_task("digits"), honest=9, colluders=7)
    assert type(attack).__doc__


def test_label_flip_needs_labels() -> None:
    with pytest.raises(AttackError, match=r"^label-flip needs a task with labels, and this one has none"):
        make_attack("label-flip").check(make_task("quadratic"), honest=9, colluders=7)


@pytest.mark.parametrize(("honest", "colluders"), [(1, 1), (2, 4)])
def test_alie_where_it_is_not_defined(honest: int, colluders: int) -> None:
    with pytest.raises(AttackError, match=f"^alie is not defined for {colluders} liars among {honest + colluders}"):
        make_attack("alie").check(make_task("digits"), honest=honest, colluders=colluders)


def test_options() -> None:
    assert make_attack("sign-flip:scale=3") == SignFlip(3.0)
    assert make_attack("ipm-0.1:epsilon=0.2") == InnerProductSmall(0.2)
    assert make_attack("delayed-gradient:delay=7") == DelayedGradient(7)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sgn-flip", "unknown attack 'sgn-flip': did you mean sign-flip or bit-flip\\?"),
        ("sign-flip:scale=0", "'sign-flip:scale=0': scale must be a positive number, got 0.0"),
        ("sign-flip:scale=nan", "option 'scale' takes a finite number, got 'nan'"),
        ("random-direction:scale=-1", "'random-direction:scale=-1': scale must be a positive number, got -1.0"),
        ("random-direction:scale=inf", "option 'scale' takes a finite number, got 'inf'"),
        ("delayed-gradient:delay=0", "'delayed-gradient:delay=0': delay must be at least 1, got 0"),
        ("delayed-gradient:delay=1.5", "option 'delay' takes a whole number, got '1.5'"),
        ("ipm-0.6:epsilon=-1", "'ipm-0.6:epsilon=-1': epsilon must be a positive number, got -1.0"),
        ("hide:share=0", "'hide:share=0': share must be a positive number, got 0.0"),
        ("hide:deviation=-1", "'hide:deviation=-1': deviation must be a positive number, got -1.0"),
        ("nudge:size=0", "'nudge:size=0': size must be a positive number, got 0.0"),
        ("inflate:scale=-1", "'inflate:scale=-1': scale must be a positive number, got -1.0"),
        ("covered-aggregate:shift=0", "'covered-aggregate:shift=0': shift must be a positive number, got 0.0"),
        ("vanish:after=lunch", ".*after is one of commit, clip, reveal, report, got 'lunch'"),
        ("label-flip:classes=3", "'label-flip:classes=3' has no option 'classes' \\(its options: none\\)"),
    ],
)
def test_errors(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=f"^{message}"):
        make_attack(spec)


def test_a_sandbagger_repeats_the_first_of_its_batch() -> None:
    """Its gradient is that of the smaller batch, and it makes as few local steps as it says."""
    task, attack = make_task("digits"), make_attack("sandbagger:share=0.25")
    problem = Problem(task)
    batch = problem.batch(derive(3))
    poisoned = attack.poison(task, batch)
    for name in ("images", "labels"):
        assert torch.equal(poisoned[name], batch[name][[0, 1] * 4])
    assert torch.equal(poisoned[NOISE], batch[NOISE])
    few = {name: rows if name == NOISE else rows[:2] for name, rows in batch.items()}
    x_D = problem.initial(0)
    assert torch.allclose(problem.gradient(x_D, poisoned)[1], problem.gradient(x_D, few)[1], atol=1e-6)
    accumulated = with_options(task, accumulate=2)
    micro = Problem(accumulated).batch(derive(3))
    assert torch.equal(attack.poison(accumulated, micro)["labels"], micro["labels"][:, [0, 1] * 4])
    assert [make_attack("sandbagger:steps=3").local_steps(steps) for steps in (1, 3, 8)] == [1, 3, 3]
