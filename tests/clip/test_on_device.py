"""PyTorch's operations in place of loops, here on CPU tensors: bits or digits of the reference."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.clip.nasty import PROPERTY, any_bits, finite, moderate, seeds, sizes
from troth.clip import kernels, on_device
from troth.clip.centered_clip import judge_center, pulls
from troth.clip.exact import norm_by_numpy
from troth.clip.on_device import tree_sum
from troth.crypto import sign_bytes, tagged_hash

KEY = tagged_hash("key")


@PROPERTY
@given(sizes, seeds)
def test_checks_and_flushing(size: int, seed: int) -> None:
    for numbers_D in (any_bits(size, seed), finite(size, seed), np.ones(size, np.float32)):
        assert on_device.odd_numbers(torch.from_numpy(numbers_D)) == kernels.odd_numbers(numbers_D)
        flushed_D = torch.from_numpy(numbers_D.copy())
        on_device.flush(flushed_D)
        kernels.flush(numbers_D)
        assert np.array_equal(flushed_D.numpy().view(np.uint32), numbers_D.view(np.uint32))


@PROPERTY
@given(sizes, seeds)
def test_gradients_are_finite_or_zero(size: int, seed: int) -> None:
    for numbers_D in (any_bits(size, seed), finite(size, seed)):
        clean_D = on_device.finite_or_zero(torch.from_numpy(numbers_D))
        right_D = np.zeros_like(numbers_D) if kernels.odd_numbers(numbers_D)[1] else numbers_D.copy()
        kernels.flush(right_D)
        assert np.array_equal(clean_D.numpy().view(np.uint32), right_D.view(np.uint32))


@PROPERTY
@given(sizes, seeds)
def test_squared_parts(size: int, seed: int) -> None:
    numbers_D, bounds = moderate(size, seed), (0, size // 3, size)
    found_S = on_device.squared_parts(torch.from_numpy(numbers_D), bounds)
    np.testing.assert_allclose(found_S, kernels.squared_lengths(numbers_D[None], bounds)[:, 0], rtol=1e-12)


@PROPERTY
@given(sizes, seeds)
def test_the_norm_has_the_bits_of_the_reference(size: int, seed: int) -> None:
    numbers_D = finite(size + 64, seed)
    assert on_device.exact_norm(torch.from_numpy(numbers_D), 1 << 14, 16) == norm_by_numpy(numbers_D)


@pytest.mark.parametrize("size", [1 << 18, 5 << 18, (9 << 18) + 12_345, 4_000_003])
def test_the_norm_of_millions(size: int) -> None:
    numbers_D = finite(size, 3)
    assert on_device.exact_norm(torch.from_numpy(numbers_D), 1 << 14, 16) == norm_by_numpy(numbers_D)


def test_float64_vectors_stay_as_they_are() -> None:
    """As `troth doctor` makes them: squared in place, a gradient that is clipped after its norm was taken would be another."""
    size = (1 << 18) + 5
    rows_PD = torch.from_numpy(np.stack([moderate(size, 1), moderate(size, 2)])).double()
    before_PD, row_D, bounds = rows_PD.clone(), rows_PD[0], (0, 7, size)
    on_device.exact_norm(row_D, 1 << 14, 16)
    on_device.squared_parts(row_D, bounds)
    judge_center(rows_PD, row_D, tau=1.0)
    on_device.differences(rows_PD, row_D, bounds, torch.from_numpy(sign_bytes(KEY, 16, 0, size)))
    on_device.gram(rows_PD, row_D)
    assert torch.equal(rows_PD, before_PD)


@PROPERTY
@given(sizes, st.integers(1, 4), seeds)
def test_pulls_have_the_bits_of_the_reference(size: int, peers: int, seed: int) -> None:
    rows_PD = torch.from_numpy(np.stack([finite(size, seed + p) for p in range(peers)]))
    center_D = torch.from_numpy(moderate(size, seed + 9))
    residual_D, norms = pulls(rows_PD.double(), center_D.double(), 1.0)
    right_D, right = pulls(rows_PD.double().numpy(), center_D.double().numpy(), 1.0)
    assert norms == right
    assert np.array_equal(residual_D.numpy(), right_D)
    assert float(tree_sum(residual_D.square())) == float(tree_sum(np.square(right_D)))


@PROPERTY
@given(sizes, st.integers(1, 4), st.sampled_from([1, 16, 33]), seeds)
def test_differences_lengths_and_projections(size: int, peers: int, count: int, seed: int) -> None:
    rows_PD, center_D = np.stack([moderate(size, seed + p) for p in range(peers)]), moderate(size, seed + 9)
    bounds = (0, size // 3, size)

    def signs(start: int, stop: int) -> np.ndarray:
        return sign_bytes(KEY, count, start, stop)

    right = kernels.differences(rows_PD, center_D, bounds, signs)
    found = on_device.differences(
        torch.from_numpy(rows_PD), torch.from_numpy(center_D), bounds, torch.from_numpy(signs(0, size))
    )
    np.testing.assert_allclose(found.squares_SP, right.squares_SP, rtol=1e-12)
    np.testing.assert_allclose(found.lengths_SP, right.lengths_SP, rtol=1e-12)
    off_SPK = np.abs(found.products_SPK - right.products_SPK)
    assert (off_SPK <= 1e-12 * np.sqrt(right.squares_SP)[..., None]).all()


@PROPERTY
@given(sizes, st.integers(1, 4), seeds, st.sampled_from([0.0, 0.3]))
def test_combinations(size: int, peers: int, seed: int, rest: float) -> None:
    rows_PD, center_D = np.stack([moderate(size, seed + p) for p in range(peers)]), moderate(size, seed + 9)
    coefficients_P = np.random.default_rng(seed).standard_normal(peers)
    right_D, *right = kernels.combine(rows_PD, coefficients_P, center_D, rest)
    found_D, *found = on_device.combine(
        torch.from_numpy(rows_PD), torch.from_numpy(coefficients_P), torch.from_numpy(center_D), rest
    )
    np.testing.assert_allclose(found_D, right_D, rtol=2e-7, atol=1e-9 * float(np.abs(rows_PD).max()))
    np.testing.assert_allclose(found[1:], right[1:], rtol=1e-9)


@PROPERTY
@given(sizes, st.integers(1, 5), seeds)
def test_inner_products(size: int, peers: int, seed: int) -> None:
    rows_PD, center_D = np.stack([moderate(size, seed + p) for p in range(peers)]), moderate(size, seed + 9)
    right_PP = kernels.gram(rows_PD, center_D)
    norm_P = np.sqrt(right_PP.diagonal())
    found_PP = on_device.gram(torch.from_numpy(rows_PD), torch.from_numpy(center_D))
    assert (np.abs(np.triu(found_PP) - right_PP) <= 2.0**-44 * np.outer(norm_P, norm_P)).all()
    assert np.array_equal(found_PP, found_PP.T)
