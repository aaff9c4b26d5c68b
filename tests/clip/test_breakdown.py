"""How far liars can move each rule: the mean anywhere, the others no farther than a bound, however long the lie."""

import pytest
import torch
from torch import Tensor

from tests.clip.oracle import gaussian_rows, norm
from troth.clip.fast import centered_clip
from troth.workshop.rules.memoryless import geometric_median, krum, mean, median, multi_krum, trimmed_mean

# P peers, H honest ones among them, D coordinates

PEERS, WIDTH = 16, 20
LENGTHS = [1e3, -1e8, 1e30]
LIARS = [1, 6]  # Krum's proof asks for P > 2·liars + 2


def honest_rows(liars: int) -> Tensor:
    return gaussian_rows(1, PEERS - liars, WIDTH) + 3.0


def attacked(honest_HD: Tensor, length: float) -> Tensor:
    """The liars all send one long row: together they are the tightest group there is."""
    direction_D = gaussian_rows(2, 1, WIDTH)[0]
    liars = PEERS - len(honest_HD)
    return torch.cat([length * direction_D.expand(liars, WIDTH), honest_HD])


def spread(honest_HD: Tensor, v_D: Tensor) -> float:
    return float(torch.linalg.vector_norm(honest_HD - v_D, dim=1).max())


@pytest.mark.parametrize("liars", LIARS)
@pytest.mark.parametrize("length", LENGTHS)
def test_mean_goes_wherever_a_liar_wants(length: float, liars: int) -> None:
    """The expected failure: with one liar in sixteen it is a sixteenth of the lie."""
    rows_PD = attacked(honest_rows(liars), length)
    assert norm(mean(rows_PD) - rows_PD[0] * liars / PEERS) <= 1e-12 * norm(rows_PD[0]) + 20
    assert norm(mean(rows_PD) - mean(rows_PD[liars:])) > abs(length) / PEERS


def test_a_liar_who_knows_the_others_chooses_the_mean() -> None:
    honest_HD, wish_D = honest_rows(1), torch.full((WIDTH,), -1e4, dtype=torch.float64)
    lie_D = PEERS * wish_D - honest_HD.sum(dim=0)
    torch.testing.assert_close(mean(torch.cat([honest_HD, lie_D[None]])), wish_D, rtol=1e-12, atol=0)


@pytest.mark.parametrize("liars", LIARS)
@pytest.mark.parametrize("length", LENGTHS)
def test_median_and_trimmed_mean_stay_among_the_honest(length: float, liars: int) -> None:
    honest_HD = honest_rows(liars)
    rows_PD = attacked(honest_HD, length)
    for found_D in (median(rows_PD), trimmed_mean(rows_PD, byzantine=liars)):
        assert bool((found_D >= honest_HD.amin(dim=0)).all())
        assert bool((found_D <= honest_HD.amax(dim=0)).all())


def test_trimming_too_little_breaks() -> None:
    """Three liars and `byzantine=2`: one of them stays in."""
    honest_HD = honest_rows(3)
    rows_PD = attacked(honest_HD, 1e8)
    assert norm(trimmed_mean(rows_PD, byzantine=2) - mean(honest_HD)) > 1e6
    assert norm(trimmed_mean(rows_PD, byzantine=3) - mean(honest_HD)) < spread(honest_HD, mean(honest_HD))


@pytest.mark.parametrize("liars", LIARS)
@pytest.mark.parametrize("length", LENGTHS)
def test_krum_picks_an_honest_row(length: float, liars: int) -> None:
    honest_HD = honest_rows(liars)
    found_D = krum(attacked(honest_HD, length), byzantine=liars)
    assert any(torch.equal(found_D, row_D) for row_D in honest_HD)


def test_krum_that_expects_too_few_liars_breaks() -> None:
    """Six who send the same row have five neighbours at distance zero: enough to win where five are counted."""
    rows_PD = attacked(honest_rows(6), 1e8)
    assert torch.equal(krum(rows_PD, byzantine=PEERS - 2 - 5), rows_PD[0])


@pytest.mark.parametrize("liars", LIARS)
@pytest.mark.parametrize("length", LENGTHS)
def test_multi_krum_is_the_mean_of_the_honest(length: float, liars: int) -> None:
    honest_HD = honest_rows(liars)
    found_D = multi_krum(attacked(honest_HD, length), byzantine=liars)
    torch.testing.assert_close(found_D, mean(honest_HD), rtol=0, atol=1e-12)


def assert_geometric_median_holds(length: float, liars: int) -> None:
    """`‖v − c‖ ≤ 2H/(H − liars)·max_honest ‖x_i − c‖` for every point c (Lopuhaä and Rousseeuw 1991)."""
    honest_HD = honest_rows(liars)
    center_D, honest = mean(honest_HD), PEERS - liars
    found_D = geometric_median(attacked(honest_HD, length))
    assert norm(found_D - center_D) <= 2 * honest / (honest - liars) * spread(honest_HD, center_D)


@pytest.mark.parametrize("liars", LIARS)
@pytest.mark.parametrize("length", [1e3, -1e8])
def test_geometric_median_holds(length: float, liars: int) -> None:
    assert_geometric_median_holds(length, liars)


@pytest.mark.parametrize("liars", LIARS)
@pytest.mark.parametrize("length", [-1e20, 1e30])
def test_geometric_median_holds_against_any_length(length: float, liars: int) -> None:
    assert_geometric_median_holds(length, liars)


@pytest.mark.parametrize("tau", [0.5, 5.0, 50.0])
@pytest.mark.parametrize("liars", LIARS)
@pytest.mark.parametrize("length", LENGTHS)
def test_centered_clip_holds(length: float, liars: int, tau: float) -> None:
    """Let the honest be within r of c, and v at distance d of it. Liars pull with at most `liars·τ`.

    Each honest row pulls back along c − v with at least `(d − r)·min(1, τ/(d + r))`. At the balance that is
    `d ≤ r·P/(H − liars)` where they are clipped and `d ≤ r + τ·liars/H` where they are not.
    """
    honest_HD = honest_rows(liars)
    center_D, honest = mean(honest_HD), PEERS - liars
    r = spread(honest_HD, center_D)
    found_D = centered_clip(attacked(honest_HD, length), tau=tau)
    assert norm(found_D - center_D) <= max(r * PEERS / (honest - liars), r + tau * liars / honest)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_length_of_a_clipped_row_is_irrelevant(sign: int) -> None:
    """Beyond the radius only the direction of a lie counts, so ever longer lies converge to one result."""
    honest_HD = honest_rows(6)
    near_D, far_D = (centered_clip(attacked(honest_HD, sign * length), tau=5.0) for length in (1e15, 1e45))
    torch.testing.assert_close(near_D, far_D, rtol=0, atol=1e-6)
