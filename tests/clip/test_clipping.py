"""The two reads of CenteredClip's solver against extended precision, and the solver either way."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.clip.nasty import PROPERTY, moderate, seeds, sizes
from troth.clip import kernels
from troth.clip.centered_clip import clip_residual
from troth.clip.fast import _GRAM_ERROR, solve_centered_clip


@pytest.mark.long
@PROPERTY
@given(sizes, st.integers(1, 9), seeds)
def test_inner_products_are_within_the_bound_that_the_solver_believes(size: int, peers: int, seed: int) -> None:
    rows_PD, center_D = np.stack([moderate(size, seed + p) for p in range(peers)]), moderate(size, seed + 11)
    around_PD = rows_PD.astype(np.longdouble) - center_D
    right_PP = around_PD @ around_PD.T
    norm_P = np.sqrt(right_PP.diagonal())
    found_PP = kernels.gram([row_D.copy() for row_D in rows_PD], center_D)
    assert (np.abs(found_PP - np.triu(right_PP)) <= _GRAM_ERROR * np.outer(norm_P, norm_P)).all()
    assert np.array_equal(found_PP, kernels.gram(rows_PD, center_D)), "stacked or not"


@pytest.mark.parametrize("number", [0.1, 1 / 3, 7e-12])
def test_equal_numbers_stay_within_the_bound(number: float) -> None:
    size = 5_000_000
    rows_PD = np.full((2, size), number, np.float32)
    right = size * float(rows_PD[0, 0]) ** 2
    found_PP = kernels.gram(rows_PD, np.zeros(size, np.float32))
    assert np.abs(np.triu(found_PP - right)).max() <= _GRAM_ERROR * right


@pytest.mark.long
@PROPERTY
@given(sizes, st.integers(1, 9), seeds, st.sampled_from([0.0, 0.3, -2.0]))
def test_a_combination_is_rounded_once_and_flushed(size: int, peers: int, seed: int, rest: float) -> None:
    rows_PD, center_D = np.stack([moderate(size, seed + p) for p in range(peers)]), moderate(size, seed + 11)
    coefficients_P = np.random.default_rng(seed).standard_normal(peers)
    value_D, lost, length, reach = kernels.combine(rows_PD, coefficients_P, center_D, rest)
    exact_D = coefficients_P @ rows_PD.astype(np.longdouble) + rest * center_D.astype(np.longdouble)
    sums_D = np.abs(coefficients_P) @ np.abs(rows_PD) + np.abs(rest * center_D)
    assert (np.abs(value_D - exact_D) <= 2.0**-24 * np.abs(exact_D) + 2.0**-48 * sums_D + 2.0**-126).all()
    assert not kernels.odd_numbers(value_D)[0]
    wide_D = value_D.astype(np.float64)
    assert length == pytest.approx(float(wide_D @ wide_D), rel=1e-12)
    assert reach == pytest.approx(float(np.square(center_D, dtype=np.float64).sum()), rel=1e-12)
    off = float(np.sqrt(np.sum(np.square(exact_D - value_D))))
    assert np.sqrt(lost) == pytest.approx(off, rel=1e-6, abs=1e-14 * float(np.linalg.norm(sums_D)))


def rows_with_liars(width: int) -> torch.Tensor:
    chance = torch.Generator().manual_seed(width)
    rows_PD = torch.randn(width, generator=chance) + torch.randn(16, width, generator=chance)
    rows_PD[:7] *= -1000
    return rows_PD


@pytest.mark.parametrize("share", [10.0, 1.0, 0.1, 0.01])
def test_the_solver_finds_the_same_centre_either_way(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_PD = rows_with_liars(30_011)
    tau = share * 30_011**0.5
    compiled = solve_centered_clip(rows_PD, tau=tau)
    assert (
        float(clip_residual(rows_PD, compiled.value_D, tau=tau).norm()) <= compiled.residual <= compiled.tolerance / 4
    )
    monkeypatch.setattr(kernels, "compiled", lambda _: False)
    plain = solve_centered_clip(rows_PD, tau=tau)
    assert compiled.reads == plain.reads
    assert torch.allclose(compiled.value_D, plain.value_D, rtol=1e-6, atol=1e-6)
