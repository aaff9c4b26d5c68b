"""Attacks that need no search, against their formulas."""

from statistics import NormalDist
from types import ModuleType

import numpy as np
import pytest
import torch

from tests.workshop.attacks.gradient.forging import forger, rows
from troth.specs import SpecError
from troth.workshop.attacks import make_attack

# B colluders, H honest peers, D coordinates
OWN_BD, HONEST_HD = rows("own", 3), rows("honest", 5)


def test_bit_flip_is_a_sign_flip_without_scale() -> None:
    assert torch.equal(forger("bit-flip")(OWN_BD, HONEST_HD), -OWN_BD)
    assert torch.equal(forger("bit-flip")(OWN_BD, HONEST_HD), forger("sign-flip:scale=1")(OWN_BD, HONEST_HD))


def test_zero() -> None:
    assert torch.equal(forger("zero")(OWN_BD, HONEST_HD), torch.zeros(3, 12, dtype=torch.float64))


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_not_finite_in_all_coordinates_or_in_one(value: str) -> None:
    everywhere = forger(f"not-finite:value={value}")(OWN_BD, HONEST_HD)
    np.testing.assert_array_equal(everywhere.numpy(), np.full((3, 12), float(value)))
    once = forger(f"not-finite:value={value},where=one")(OWN_BD, HONEST_HD)
    np.testing.assert_array_equal(once[:, 0].numpy(), np.full(3, float(value)))
    assert torch.equal(once[:, 1:], OWN_BD[:, 1:])


def test_gaussian_noise_has_its_deviation_and_is_everybodys_own_in_every_step() -> None:
    forge = forger("gaussian:deviation=3")
    own_BD = torch.zeros(3, 20_000)
    first_BD, second_BD = forge(own_BD, own_BD), forge(own_BD, own_BD)
    drawn_ND = torch.cat([first_BD, second_BD])
    assert drawn_ND.std(dim=1).numpy() == pytest.approx(np.full(6, 3.0), rel=0.03)
    assert drawn_ND.mean(dim=1).abs().max() < 0.1
    correlations = torch.corrcoef(drawn_ND) - torch.eye(6)
    assert correlations.abs().max() < 0.04


def test_slow_poison_is_one_direction_and_a_share_of_the_length() -> None:
    forge = forger("slow-poison:share=0.2")
    directions = []
    for own_BD in (OWN_BD, rows("later", 3)):
        lengths_B = 0.2 * np.linalg.norm(own_BD.numpy(), axis=1)
        moved_BD = forge(own_BD, HONEST_HD) - own_BD
        np.testing.assert_allclose(np.linalg.norm(moved_BD.numpy(), axis=1), lengths_B, rtol=1e-12)
        directions += list(moved_BD / torch.from_numpy(lengths_B)[:, None])
    torch.testing.assert_close(torch.stack(directions), directions[0].expand(6, -1))


def test_alie_agrees_with_byzfl(byzfl_attacks: ModuleType) -> None:
    """ByzFL takes the number of deviations as its parameter, with the other sign."""
    own_BD, honest_HD = rows("own", 7), rows("honest", 9)
    theirs_D = byzfl_attacks.ALittleIsEnough(tau=-NormalDist().inv_cdf(7 / 9))(honest_HD.numpy())
    for row_D in forger("alie", members=7)(own_BD, honest_HD):
        np.testing.assert_allclose(row_D.numpy(), theirs_D, rtol=1e-12)


def test_inner_product_manipulation_agrees_with_byzfl(byzfl_attacks: ModuleType) -> None:
    theirs_D = byzfl_attacks.InnerProductManipulation(tau=0.6)(HONEST_HD.numpy())
    np.testing.assert_allclose(forger("ipm-0.6")(OWN_BD, HONEST_HD)[0].numpy(), theirs_D, rtol=1e-12)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("not-finite:value=7", "'not-finite:value=7': value is one of nan, inf, -inf, got '7'"),
        ("not-finite:where=two", "'not-finite:where=two': where is one of all, one, got 'two'"),
        ("gaussian:deviation=0", "'gaussian:deviation=0': deviation must be a positive number, got 0.0"),
        ("slow-poison:share=-1", "'slow-poison:share=-1': share must be a positive number, got -1.0"),
        ("mimic:warmup=0", "'mimic:warmup=0': warmup must be at least 1, got 0"),
        ("min-max:direction=up", "'min-max:direction=up': direction is one of std, unit, sign, got 'up'"),
        ("rop:relocation=2", "'rop:relocation=2': relocation must be from 0 to 1, got 2.0"),
        ("tailored:damage=all", "'tailored:damage=all': damage is one of against, distance, got 'all'"),
        ("backdoor:share=0", "'backdoor:share=0': share must be above 0 and at most 1, got 0.0"),
        ("unwatched:chance=0", "'unwatched:chance=0': chance must be above 0 and at most 1, got 0.0"),
        ("unwatched:attack=backdoor", ".*attack must be one that forges gradients and does nothing else"),
        ("unwatched:attack=vanish", ".*attack must be one that forges gradients and does nothing else"),
        ("unwatched:attack=nothing", "unknown attack 'nothing'"),
    ],
)
def test_errors(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=f"^{message}"):
        make_attack(spec)
