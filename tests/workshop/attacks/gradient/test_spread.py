"""Min-max and min-sum (Shejwalkar and Houmansadr 2021): the largest γ that their constraint allows, from closed forms."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.workshop.attacks.gradient.forging import forger, rows

# B colluders, H honest peers, D coordinates
OWN_BD, HONEST_HD = rows("own", 3), rows("honest", 6)
DIRECTIONS = ["std", "unit", "sign"]


def direction(name: str) -> NDArray[np.float64]:
    honest = HONEST_HD.numpy()
    mean_D = honest.mean(axis=0)
    found: dict[str, NDArray[np.float64]] = {
        "std": -honest.std(axis=0, ddof=1),
        "unit": -mean_D / np.linalg.norm(mean_D),
        "sign": -np.sign(mean_D),
    }
    return found[name]


def squared_distances() -> NDArray[np.float64]:
    honest = HONEST_HD.numpy()
    found: NDArray[np.float64] = np.square(honest[:, None] - honest[None]).sum(axis=2)
    return found


def positive_root(a: float, b: float, c: float) -> float:
    return float((-b + np.sqrt(b * b - 4 * a * c)) / (2 * a))


@pytest.mark.parametrize("name", DIRECTIONS)
def test_min_max(name: str) -> None:
    """‖μ + γp − g_i‖² = D² is a quadratic in γ for every i; the smallest of their roots is the largest γ."""
    honest, p_D = HONEST_HD.numpy(), direction(name)
    away_HD = honest.mean(axis=0) - honest
    most = squared_distances().max()
    gamma = min(positive_root(float(p_D @ p_D), float(2 * p_D @ g_D), float(g_D @ g_D - most)) for g_D in away_HD)
    forged_BD = forger(f"min-max:direction={name}")(OWN_BD, HONEST_HD).numpy()
    np.testing.assert_allclose(forged_BD, np.tile(honest.mean(axis=0) + gamma * p_D, (3, 1)), rtol=1e-9, atol=1e-9)
    farthest = np.square(forged_BD[0] - honest).sum(axis=1).max()
    assert farthest <= most * (1 + 1e-12)
    assert farthest == pytest.approx(most, rel=1e-9), "as far as it may go"


@pytest.mark.parametrize("name", DIRECTIONS)
def test_min_sum(name: str) -> None:
    """Σ_i ‖μ + γp − g_i‖² = Σ_i ‖μ − g_i‖² + Hγ²‖p‖², since Σ_i (μ − g_i) = 0."""
    honest, p_D = HONEST_HD.numpy(), direction(name)
    most = squared_distances().sum(axis=1).max()
    gamma = np.sqrt((most - np.square(honest.mean(axis=0) - honest).sum()) / (len(honest) * (p_D @ p_D)))
    forged_BD = forger(f"min-sum:direction={name}")(OWN_BD, HONEST_HD).numpy()
    np.testing.assert_allclose(forged_BD, np.tile(honest.mean(axis=0) + gamma * p_D, (3, 1)), rtol=1e-9, atol=1e-9)
    assert np.square(forged_BD[0] - honest).sum() == pytest.approx(most, rel=1e-9)


@pytest.mark.parametrize("spec", ["min-max", "min-sum"])
def test_among_equals_they_send_what_all_send(spec: str) -> None:
    same_HD = rows("one", 1).expand(5, -1)
    torch.testing.assert_close(forger(spec)(OWN_BD, same_HD), same_HD[:3])
    torch.testing.assert_close(forger(spec)(OWN_BD, same_HD[:1]), same_HD[:3])  # a single honest peer
