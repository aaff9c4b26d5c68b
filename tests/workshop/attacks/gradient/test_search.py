"""Attacks made against a known defence: relocated orthogonal perturbation, and the tailored search."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.workshop.attacks.gradient.forging import forger, rows
from troth.clip.fast import centered_clip
from troth.training import make_task
from troth.workshop.attacks import AttackError, make_attack
from troth.workshop.attacks.informed_lies import alie_deviations
from troth.workshop.rules.memoryless import krum, median

# B colluders, H honest peers, P contributors, D coordinates
OWN_BD, HONEST_HD = rows("own", 3), rows("honest", 5)


def clip(rows_PD: Tensor) -> Tensor:
    return centered_clip(rows_PD, tau=1.0)


def test_rop_steps_from_the_last_aggregate_at_right_angles_to_the_reference() -> None:
    forge = forger("rop:z=0.7", foresee=clip, start=1)
    forge(OWN_BD, HONEST_HD)  # still honest: what it remembers is the aggregate of honest rows
    later_HD = rows("later", 5)
    forged_BD = forge(OWN_BD, later_HD).numpy()
    last_D = clip(torch.cat([OWN_BD, HONEST_HD])).numpy()
    reference_D = 0.9 * last_D + 0.1 * later_HD.numpy().mean(axis=0)
    away_D = forged_BD[0] - last_D
    assert np.linalg.norm(away_D) == pytest.approx(0.7)
    assert away_D @ reference_D == pytest.approx(0.0, abs=1e-12)
    ones_D = np.ones(12)
    across_D = ones_D - (ones_D @ reference_D) / (reference_D @ reference_D) * reference_D
    np.testing.assert_allclose(away_D, 0.7 * across_D / np.linalg.norm(across_D), atol=1e-12)
    assert (forged_BD == forged_BD[0]).all()


def test_rop_with_other_options() -> None:
    """Half-way between aggregate and honest mean; 180° is straight back along the reference."""
    forge = forger("rop:relocation=0.5,reference=0,angle=180,z=2")
    first_D = forge(OWN_BD, HONEST_HD)[0].numpy()
    mean_D = HONEST_HD.numpy().mean(axis=0)
    np.testing.assert_allclose(first_D, 0.5 * mean_D - 2 * mean_D / np.linalg.norm(mean_D), atol=1e-12)


def test_rop_is_as_long_as_alie_has_deviations_unless_told() -> None:
    own_BD, honest_HD = rows("own", 7), rows("honest", 9)
    first_D = forger("rop", members=7)(own_BD, honest_HD)[0]  # before there is an aggregate it starts from zero
    assert float(first_D.norm()) == pytest.approx(alie_deviations(16, 7))
    with pytest.raises(AttackError, match=r"^rop takes its length z from alie, .* set z$"):
        make_attack("rop").check(make_task("quadratic"), honest=1, colluders=1)
    make_attack("rop:z=1").check(make_task("quadratic"), honest=1, colluders=1)


@pytest.mark.parametrize("defence", [clip, median, lambda rows_PD: krum(rows_PD, byzantine=3)])
def test_tailored_rows_do_the_most_damage_of_all_that_it_tries(defence: Callable[[Tensor], Tensor]) -> None:
    mean_D = HONEST_HD.mean(dim=0)

    def damage(rows_BD: Tensor) -> float:
        return float((mean_D - defence(torch.cat([rows_BD, HONEST_HD]))) @ mean_D / mean_D.norm())

    usual = (HONEST_HD - mean_D).norm(dim=1).mean()
    directions = [-mean_D, -mean_D.sign(), -HONEST_HD.std(dim=0)]
    tried = [mean_D + s * usual * d_D / d_D.norm() for d_D in directions for s in (0.3, 1.0, 2.0, 5.0, 30.0, 1000.0)]
    found = damage(forger("tailored", foresee=defence)(OWN_BD, HONEST_HD))
    assert found == pytest.approx(max(damage(row_D.expand(3, -1)) for row_D in tried))
    assert found > max(0.0, damage(OWN_BD))


def test_tailored_peeks_at_most_24_times_a_step_and_not_at_all_while_it_waits() -> None:
    peeks = 0

    def counted(rows_PD: Tensor) -> Tensor:
        nonlocal peeks
        peeks += 1
        assert torch.equal(rows_PD[3:], HONEST_HD), "colluders' rows come first"
        return rows_PD.mean(dim=0)

    forge = forger("tailored", foresee=counted, start=1)
    assert torch.equal(forge(OWN_BD, HONEST_HD), OWN_BD)
    assert peeks == 0
    forge(OWN_BD, HONEST_HD)
    assert 0 < peeks <= 24


def test_against_the_mean_the_tailored_attack_goes_straight_back_as_far_as_it_tries() -> None:
    mean_D = HONEST_HD.mean(dim=0)
    usual = (HONEST_HD - mean_D).norm(dim=1).mean()
    right_D = mean_D - 1000 * usual * mean_D / mean_D.norm()
    torch.testing.assert_close(forger("tailored")(OWN_BD, HONEST_HD)[0], right_D)


def test_a_squad_foresees_what_others_send_too() -> None:
    seen: list[Tensor] = []

    def recorded(rows_PD: Tensor) -> Tensor:
        seen.append(rows_PD)
        return rows_PD.mean(dim=0)

    sent_BD = forger("bit-flip + tailored", foresee=recorded)(OWN_BD, HONEST_HD)
    assert torch.equal(sent_BD[[0, 2]], -OWN_BD[[0, 2]])
    assert all(torch.equal(rows_PD[[0, 2]], -OWN_BD[[0, 2]]) and len(rows_PD) == 8 for rows_PD in seen)
    assert any(torch.equal(rows_PD[1], sent_BD[1]) for rows_PD in seen)
