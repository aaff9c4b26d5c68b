"""Rows of an adversary that knows the solver: drawn by kind and seed."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

# P rows, D coordinates

Rows = NDArray[np.float64]
_LARGEST = 3.4e38
_WIDTHS = (1, 1, 2, 3, 5, 17, 64, 300)


def _plain(rng: Generator, shape: tuple[int, int]) -> Rows:
    return rng.standard_normal(shape)


def _nearly_equal(rng: Generator, shape: tuple[int, int]) -> Rows:
    return np.asarray(rng.standard_normal((1, shape[1])) + rng.standard_normal(shape) * 10.0 ** rng.uniform(-8, 0))


def _equal(rng: Generator, shape: tuple[int, int]) -> Rows:
    return np.repeat(rng.standard_normal((1, shape[1])), shape[0], axis=0)


def _clusters(rng: Generator, shape: tuple[int, int]) -> Rows:
    sides = np.where(np.arange(shape[0])[:, None] % 2, 1, -1)
    return np.asarray(
        sides * np.abs(rng.standard_normal((1, shape[1]))) + rng.standard_normal(shape) * 10.0 ** rng.uniform(-9, -1)
    )


def _ray(rng: Generator, shape: tuple[int, int]) -> Rows:
    return np.outer(np.sort(10.0 ** rng.uniform(-6, 6, shape[0])), rng.standard_normal(shape[1]))


def _sparse(rng: Generator, shape: tuple[int, int]) -> Rows:
    return rng.standard_normal(shape) * (rng.random(shape) < 0.1)


def _line(rng: Generator, shape: tuple[int, int]) -> Rows:
    return np.asarray(
        np.outer(rng.permutation(np.linspace(-1, 1, shape[0])), np.ones(shape[1])) * 10.0 ** rng.uniform(-3, 6)
    )


def _neighbours(rng: Generator, shape: tuple[int, int]) -> Rows:
    """Rows a few units in the last place of float32 apart."""
    first = rng.standard_normal((1, shape[1]))
    return first + rng.integers(-2, 3, shape) * np.abs(first) * 2.0**-23


def _grid(rng: Generator, shape: tuple[int, int]) -> Rows:
    return rng.choice([0, 1, -1, 2.0**20, -(2.0**20)], shape)


def _spikes(rng: Generator, shape: tuple[int, int]) -> Rows:
    """The mean of the others in all of a sample's places, and spikes of many sizes, each hiding the next, between them."""
    rows_PD = rng.standard_normal(shape) * 10.0 ** rng.uniform(-4, 0) + rng.standard_normal((1, shape[1]))
    count = int(rng.integers(1, max(2, shape[0] // 2 + 1)))
    rows_PD[:count] = rows_PD[count:].mean(axis=0) if count < shape[0] else 0
    for row in range(count):
        rows_PD[row, rng.integers(shape[1])] = rng.choice([-1, 1]) * 10.0 ** (3 + row * rng.uniform(1, 10))
    return np.asarray(rows_PD)


KINDS: dict[str, Callable[[Generator, tuple[int, int]], Rows]] = {
    "plain": _plain,
    "nearly equal": _nearly_equal,
    "equal": _equal,
    "clusters": _clusters,
    "ray": _ray,
    "sparse": _sparse,
    "line": _line,
    "neighbours": _neighbours,
    "grid": _grid,
    "spikes": _spikes,
}


def draw_rows(kind: str, seed: int, widths: tuple[int, ...] = _WIDTHS) -> tuple[Tensor, float]:
    """Rows that pass C3, less than half of them liars', and a radius."""
    rng = np.random.default_rng([seed, *kind.encode()])
    shape = int(rng.integers(2, 17)), int(rng.choice(widths))
    scale = 10.0 ** rng.uniform(-12, 12)
    tau = scale * 10.0 ** rng.uniform(-8, 4)
    rows_PD = KINDS[kind](rng, shape) * scale
    for row in range(int(rng.integers(0, (shape[0] - 1) // 2 + 1)) if kind != "spikes" else 0):
        rows_PD[row] = _lie(rng, rows_PD, row, tau)
    rows_PD = np.clip(rows_PD, -_LARGEST, _LARGEST).astype(np.float32)
    rows_PD[np.abs(rows_PD) < 2.0**-126] = 0
    return torch.from_numpy(rows_PD), float(np.clip(tau, 1e-80, 1e80))


def _lie(rng: Generator, rows_PD: Rows, row: int, tau: float) -> Rows:
    """A liar's row, in the light of an honest one, the last."""
    width, honest = rows_PD.shape[1], rows_PD[-1]
    somewhere = rng.standard_normal(width)
    match int(rng.integers(0, 8)):
        case 0:
            return np.asarray(somewhere * 10.0 ** rng.uniform(-37, 37))
        case 1:
            return np.asarray(_LARGEST * rng.choice([-1, 1], width))
        case 2:
            return np.asarray(honest + somewhere * tau * 10.0 ** rng.uniform(-9, 1))
        case 3:
            return np.where(np.arange(width) == rng.integers(width), _LARGEST, 0.0)
        case 4:
            return np.asarray(honest)
        case 5:
            return np.asarray(-honest)
        case 6:
            return np.asarray(rows_PD[max(0, row - 1)] * (1 + 2.0**-22))
        case _:  # on the edge of the honest row's radius
            edge = tau * somewhere / np.linalg.norm(somewhere)
            return np.asarray(honest + edge * (1 + rng.choice([-1, 0, 1]) * 2.0**-20))
