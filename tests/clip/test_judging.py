"""A juror's numbers, bit for bit against the readable reference."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.clip.nasty import PROPERTY, finite, moderate, seeds, sizes
from troth.clip import kernels
from troth.clip.centered_clip import judge_center, pulls
from troth.clip.kernels import tree_terms
from troth.clip.on_device import tree_sum


def same(rows_PD: np.ndarray, center_D: np.ndarray, tau: float) -> None:
    residual_D, norms = pulls(rows_PD.astype(np.float64), center_D.astype(np.float64), tau)
    right = float(np.sqrt(tree_sum(np.square(residual_D)))), norms
    assert kernels.pulls(rows_PD, center_D, tau) == right
    assert kernels.pulls([row_D.copy() for row_D in rows_PD], center_D, tau) == right, "rows may lie apart"


@PROPERTY
@given(sizes, st.integers(1, 5), seeds, st.sampled_from([1e-30, 1.0, 1e30]))
def test_distances_and_the_residual_have_the_bits_of_the_reference(
    size: int, peers: int, seed: int, tau: float
) -> None:
    for draw in (finite, moderate):
        same(np.stack([draw(size, seed + 7 * p) for p in range(peers)]), draw(size, seed + 5), tau)


@pytest.mark.parametrize("size", [1_000_000, 1 << 20, (1 << 20) + 1, 1_234_567])
def test_a_million_coordinates(size: int) -> None:
    same(np.stack([moderate(size, seed) for seed in range(5)]), moderate(size, 9), 0.5)


@PROPERTY
@given(st.integers(1, 100_000))
def test_every_term_stands_in_one_place_of_the_tree(size: int) -> None:
    width, starts_T, counts_T = tree_terms(size)
    terms = np.concatenate([start + np.arange(count) for start, count in zip(starts_T, counts_T, strict=True)])
    assert np.array_equal(np.sort(terms), np.arange(size))
    assert (counts_T <= width).all()


def test_large_rows_are_judged_either_way_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    rows_PD = torch.from_numpy(np.stack([moderate(70_000, seed) for seed in range(4)]))
    center_D = rows_PD.mean(dim=0)
    compiled = judge_center(rows_PD, center_D, tau=1.0), judge_center(rows_PD[:, ::2], center_D[::2], tau=1.0)
    monkeypatch.setattr(kernels, "compiled", lambda _: False)
    assert compiled == (judge_center(rows_PD, center_D, tau=1.0), judge_center(rows_PD[:, ::2], center_D[::2], tau=1.0))
