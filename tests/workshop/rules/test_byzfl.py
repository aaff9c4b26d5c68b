"""Our rules against ByzFL 0.0.11, an independent implementation, in float64 and to 1e-12.

Where the definitions differ:

* *Krum.* Blanchard et al. sum over the `n − f − 2` nearest neighbours, and so do we; ByzFL takes `n − f − 1`. ByzFL's
  `Krum(f + 1)` is therefore our `krum(byzantine=f)`.
* *Multi-Krum.* The same, and ByzFL averages the best `n − f` rows: its `MultiKrum(f + 1)` keeps `n − f − 1` of them.
* *Geometric median.* ByzFL runs a fixed number of Weiszfeld steps from zero, with distances below `nu` raised to `nu`;
  we go to convergence and treat a vector under the iterate as Vardi and Zhang do. Both reach the same point.
* *CenteredClip.* ByzFL starts from zero, or from its own last result; we start from the coordinate median unless told.
  The fast solver returns the fixed point itself, which ByzFL reaches after many iterations.
"""

from types import ModuleType

import numpy as np
import pytest
import torch

from tests.clip.oracle import gaussian_rows
from troth.clip.centered_clip import centered_clip_published
from troth.clip.fast import centered_clip
from troth.workshop.rules.memoryless import geometric_median, krum, mean, median, multi_krum, trimmed_mean

SHAPES = [(7, 1), (7, 10), (16, 3), (16, 200)]  # P×D, odd and even P
WITHIN = 1e-12


@pytest.mark.parametrize(("peers", "width"), SHAPES)
def test_mean_is_average(byzfl: ModuleType, peers: int, width: int) -> None:
    rows_PD = gaussian_rows(1, peers, width)
    np.testing.assert_allclose(mean(rows_PD), byzfl.Average()(rows_PD.numpy()), rtol=WITHIN, atol=WITHIN)


@pytest.mark.parametrize(("peers", "width"), SHAPES)
def test_median(byzfl: ModuleType, peers: int, width: int) -> None:
    rows_PD = gaussian_rows(2, peers, width)
    np.testing.assert_allclose(median(rows_PD), byzfl.Median()(rows_PD.numpy()), rtol=WITHIN, atol=WITHIN)


@pytest.mark.parametrize("byzantine", [0, 1, 3])
@pytest.mark.parametrize(("peers", "width"), SHAPES)
def test_trimmed_mean(byzfl: ModuleType, peers: int, width: int, byzantine: int) -> None:
    rows_PD = gaussian_rows(3, peers, width)
    theirs_D = byzfl.TrMean(f=byzantine)(rows_PD.numpy())
    np.testing.assert_allclose(trimmed_mean(rows_PD, byzantine=byzantine), theirs_D, rtol=WITHIN, atol=WITHIN)


@pytest.mark.parametrize("byzantine", [0, 1, 2])
@pytest.mark.parametrize(("peers", "width"), SHAPES)
def test_krum_counts_one_neighbour_less(byzfl: ModuleType, peers: int, width: int, byzantine: int) -> None:
    rows_PD = gaussian_rows(4, peers, width)
    theirs_D = byzfl.Krum(f=byzantine + 1)(rows_PD.numpy())
    np.testing.assert_array_equal(krum(rows_PD, byzantine=byzantine), theirs_D)  # both return a row as it is


@pytest.mark.parametrize("byzantine", [0, 1, 2])
@pytest.mark.parametrize(("peers", "width"), SHAPES)
def test_multi_krum_counts_one_neighbour_less(byzfl: ModuleType, peers: int, width: int, byzantine: int) -> None:
    rows_PD = gaussian_rows(5, peers, width)
    theirs_D = byzfl.MultiKrum(f=byzantine + 1)(rows_PD.numpy())
    ours_D = multi_krum(rows_PD, byzantine=byzantine, keep=peers - byzantine - 1)
    np.testing.assert_allclose(ours_D, theirs_D, rtol=WITHIN, atol=WITHIN)


def test_krum_needs_the_shift_by_one(byzfl: ModuleType) -> None:
    """Without it the two disagree on some input: the shift in the tests above is not idle."""
    matrices = [gaussian_rows(seed, 7, 2) for seed in range(50)]
    same = [np.array_equal(krum(rows_PD, byzantine=2), byzfl.Krum(f=2)(rows_PD.numpy())) for rows_PD in matrices]
    assert not all(same)


@pytest.mark.parametrize("tau", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("iterations", [1, 2, 20])
@pytest.mark.parametrize(("peers", "width"), SHAPES)
def test_centered_clip_published(byzfl: ModuleType, peers: int, width: int, iterations: int, tau: float) -> None:
    rows_PD = gaussian_rows(6, peers, width)
    theirs_D = byzfl.CenteredClipping(m=None, L=iterations, tau=tau)(rows_PD.numpy())
    zero_D = torch.zeros(width, dtype=torch.float64)
    ours_D = centered_clip_published(rows_PD, tau=tau, iterations=iterations, start_D=zero_D)
    np.testing.assert_allclose(ours_D, theirs_D, rtol=WITHIN, atol=WITHIN)


@pytest.mark.parametrize("tau", [2.0, 100.0])
@pytest.mark.parametrize(("peers", "width"), [(7, 10), (16, 3)])
def test_centered_clip_is_the_limit(byzfl: ModuleType, peers: int, width: int, tau: float) -> None:
    """With rows inside the radius the iteration contracts: after 2,000 steps ByzFL is at the fixed point."""
    rows_PD = gaussian_rows(7, peers, width)
    theirs_D = byzfl.CenteredClipping(m=None, L=2000, tau=tau)(rows_PD.numpy())
    np.testing.assert_allclose(centered_clip(rows_PD, tau=tau), theirs_D, rtol=0, atol=WITHIN)


@pytest.mark.parametrize(("peers", "width"), [(7, 10), (16, 3), (16, 200)])
def test_geometric_median_is_the_limit(byzfl: ModuleType, peers: int, width: int) -> None:
    """Ours at its default stops when a step is 1e-10 of the mean distance; the steps left over sum to more than that.

    Asked for more it agrees to 1e-12.
    """
    rows_PD = gaussian_rows(8, peers, width)
    theirs_D = byzfl.GeometricMedian(nu=1e-12, T=3000)(rows_PD.numpy())
    np.testing.assert_allclose(geometric_median(rows_PD, tolerance=1e-15), theirs_D, rtol=0, atol=WITHIN)
    np.testing.assert_allclose(geometric_median(rows_PD), theirs_D, rtol=0, atol=1e-8)
