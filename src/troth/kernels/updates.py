"""Optimizer steps in one pass over parameters, gradient and state.

A step's length is added up beside it, while its numbers are in the cache, as `exact_norm` adds: `shape` is its lanes and depth.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.kernels.threads import spread

# D coordinates, T tensors of the model


def sgd(
    parameters_D: Tensor,
    gradient_D: Tensor,
    buffer_D: Tensor,
    rate: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
    shape: tuple[int, int],
) -> tuple[Tensor, Tensor, float]:
    """The next parameters and momentum, and the step's length. Scalars are rounded to float32 once, as PyTorch does."""
    from troth.kernels.loops import updates as loops

    ready = _ready(parameters_D, gradient_D, buffer_D)
    after = tuple(torch.empty_like(ready[0]) for _ in range(2))
    places = _places(ready, after)
    share, decay, speed = np.float32(momentum), np.float32(weight_decay), np.float32(rate)

    def step(start: int, stop: int) -> None:
        loops.sgd(places, start, stop, share, decay, weight_decay != 0, nesterov)

    def move(start: int, stop: int) -> None:
        loops.move(places[0], places[3], start, stop, np.float32(1), False, speed)

    return after[0], after[1], _in_blocks(step, move, places[3], len(parameters_D), shape)


def adamw(
    parameters_D: Tensor,
    gradient_D: Tensor,
    mean_D: Tensor,
    square_D: Tensor,
    scalars: tuple[float, ...],
    floors: tuple[NDArray[np.int64], NDArray[np.float32]],
    shape: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor, float]:
    """The next parameters, mean and mean square, and the step's length. `scalars` are β₁, 1 − β₁, β₂, 1 − β₂, 1/(1 − β₁ᵗ),
    1/(1 − β₂ᵗ), ε, 1 − rate·weight_decay and the rate; each is rounded to float32 once. `floors`: where each tensor of the
    model stops, and the floor of its denominators."""
    from troth.kernels.loops import updates as loops

    ready = _ready(parameters_D, gradient_D, mean_D, square_D)
    after = tuple(torch.empty_like(ready[0]) for _ in range(3))
    places = _places(ready, after)
    beta1, rest1, beta2, rest2, scale1, scale2, epsilon, kept, rate = (np.float32(scalar) for scalar in scalars)
    stops_T, floors_T = floors

    def step(start: int, stop: int) -> None:
        loops.adamw(places, start, stop, beta1, rest1, beta2, rest2, scale1, scale2, epsilon, stops_T, floors_T)

    def move(start: int, stop: int) -> None:
        loops.move(places[0], places[4], start, stop, kept, True, rate)

    return after[0], after[1], after[2], _in_blocks(step, move, places[4], len(parameters_D), shape)


def _in_blocks(
    step: Callable[[int, int], None],
    move: Callable[[int, int], None],
    place: int,
    size: int,
    shape: tuple[int, int],
) -> float:
    """Make a step block by block, each added up before it moves anything. Returns its length."""
    from troth.kernels.loops import bits

    lanes, block = shape[0], shape[0] * shape[1]

    def both(chunk: int) -> float:
        start, stop = chunk * block, min((chunk + 1) * block, size)
        step(start, stop)
        sums = np.empty(lanes)
        bits.lane_sums(place, start, stop, sums)
        move(start, stop)
        return bits.tree(sums, min(lanes, stop - start))

    return math.sqrt(math.fsum(spread(both, -(-size // block))))


def _places(ready: tuple[Tensor, ...], after: tuple[Tensor, ...]) -> NDArray[np.uintp]:
    return np.array([vector_D.data_ptr() for vector_D in (*ready, *after)], dtype=np.uintp)


def _ready(*vectors: Tensor) -> tuple[Tensor, ...]:
    """The vectors as loops read them; these hold their memory until the loops are done."""
    assert all(vector_D.shape == (len(vectors[0]),) for vector_D in vectors), "loops read as many numbers from each"
    assert all(vector_D.dtype == torch.float32 and not vector_D.is_cuda for vector_D in vectors), "loops read float32"
    return tuple(vector_D.detach().contiguous() for vector_D in vectors)
