"""What the tests of aggregation share: rows to aggregate, and a residual more exact than the code under test."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# P peers, D coordinates


def gaussian_rows(seed: int, peers: int, width: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal rows: no two distances tie."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(peers, width, generator=generator, dtype=torch.float64).to(dtype)


_EXTENDED_NUMBERS = 300_000  # more than so many numbers are done in float64: extended ones are slow on some machines


def distances(vectors_PD: Tensor, v_D: Tensor) -> NDArray[Any]:
    """`‖x_i − v‖` in extended precision."""
    away_PD = _away(vectors_PD, v_D)
    distance_P: NDArray[Any] = np.sqrt((away_PD * away_PD).sum(axis=1))
    return distance_P


def true_residual(vectors_PD: Tensor, v_D: Tensor, tau: float) -> float:
    """`‖Σ_i (x_i − v)·min(1, τ/‖x_i − v‖)‖` in extended precision, written without any of our code."""
    distance_P = distances(vectors_PD, v_D)
    weight_P = tau / np.maximum(distance_P, tau)
    pull_D = (weight_P[:, None] * _away(vectors_PD, v_D)).sum(axis=0)
    return float(np.sqrt((pull_D * pull_D).sum()))


def clipped_norms(vectors_PD: Tensor, v_D: Tensor, tau: float) -> float:
    """`Σ min(‖x_i − v‖, τ)`: the length of all pulls together, against which a residual is small or large."""
    return float(np.minimum(distances(vectors_PD, v_D), tau).sum())


def norm(v_D: Tensor) -> float:
    return float(torch.linalg.vector_norm(v_D.double()))


def _away(vectors_PD: Tensor, v_D: Tensor) -> NDArray[Any]:
    precision = np.longdouble if vectors_PD.numel() <= _EXTENDED_NUMBERS else np.float64
    away_PD: NDArray[Any] = vectors_PD.numpy().astype(precision) - v_D.numpy().astype(precision)
    return away_PD
