"""Rows dealt out by class."""

import numpy as np
import pytest

from troth.training import TaskError
from troth.training.datasets import dirichlet

LABELS = np.arange(600) % 10


def classes(alpha: float, seed: int = 0) -> float:
    """Classes in a part, on average."""
    return float(np.mean([len(np.unique(LABELS[rows])) for rows in dirichlet(LABELS, 8, alpha, seed)]))


@pytest.mark.parametrize("alpha", [0.05, 0.5, 1e9])
def test_every_row_is_dealt_once(alpha: float) -> None:
    dealt = dirichlet(LABELS, 8, alpha)
    assert sorted(np.concatenate(dealt)) == list(range(600))
    assert all(map(len, dealt))


def test_a_smaller_alpha_gives_fewer_classes() -> None:
    few, more, all_of_them = (np.mean([classes(alpha, seed) for seed in range(5)]) for alpha in (0.05, 0.5, 1e9))
    assert few < 4 < more < 9 < all_of_them


def test_shares_spread_as_dirichlets_do() -> None:
    """Variance of a share of one class: (1/P)(1 − 1/P)/(Pα + 1)."""
    shares = [[len(rows) / 200 for rows in dirichlet(np.zeros(200), 4, 2.0, seed)] for seed in range(300)]
    assert np.var(shares) == pytest.approx(0.25 * 0.75 / 9, rel=0.15)


def test_what_cannot_be_dealt_is_refused() -> None:
    with pytest.raises(TaskError, match="alpha 1e-09 leaves one of 8 parts"):
        dirichlet(np.zeros(50), 8, 1e-9)
    with pytest.raises(TaskError, match="above 0"):
        dirichlet(LABELS, 8, 0)
