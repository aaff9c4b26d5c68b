"""Optimizer steps in one pass over parameters, gradient and state."""

import numpy as np
import torch
from torch import Tensor

from troth.kernels.threads import spread

# D coordinates

_CHUNK = 1 << 16


def sgd(
    parameters_D: Tensor,
    gradient_D: Tensor,
    buffer_D: Tensor,
    *,
    rate: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
) -> tuple[Tensor, Tensor]:
    """The next parameters and momentum. Scalars are rounded to float32 once, as PyTorch does."""
    from troth.kernels.loops import updates as loops

    ready = _ready(parameters_D, gradient_D, buffer_D)
    after = tuple(torch.empty_like(ready[0]) for _ in range(2))
    places = np.array([vector_D.data_ptr() for vector_D in (*ready, *after)], dtype=np.uintp)
    speed, share, decay = np.float32(rate), np.float32(momentum), np.float32(weight_decay)
    size = len(parameters_D)

    def move(chunk: int) -> None:
        start, stop = chunk * _CHUNK, min((chunk + 1) * _CHUNK, size)
        loops.sgd(places, start, stop, speed, share, decay, weight_decay != 0, nesterov)

    spread(move, -(-size // _CHUNK))
    return after[0], after[1]


def adamw(
    parameters_D: Tensor, gradient_D: Tensor, mean_D: Tensor, square_D: Tensor, *, scalars: tuple[float, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """The next parameters, mean and mean square. `scalars` are β₁, 1 − β₁, β₂, 1 − β₂, 1/(1 − β₁ᵗ), 1/(1 − β₂ᵗ), ε,
    1 − rate·weight_decay and the rate; each is rounded to float32 once."""
    from troth.kernels.loops import updates as loops

    ready = _ready(parameters_D, gradient_D, mean_D, square_D)
    after = tuple(torch.empty_like(ready[0]) for _ in range(3))
    places = np.array([vector_D.data_ptr() for vector_D in (*ready, *after)], dtype=np.uintp)
    rounded = [np.float32(scalar) for scalar in scalars]
    size = len(parameters_D)

    def move(chunk: int) -> None:
        loops.adamw(places, chunk * _CHUNK, min((chunk + 1) * _CHUNK, size), *rounded)

    spread(move, -(-size // _CHUNK))
    return after[0], after[1], after[2]


def _ready(*vectors: Tensor) -> tuple[Tensor, ...]:
    """The vectors as loops read them; these hold their memory until the loops are done."""
    assert all(vector_D.shape == (len(vectors[0]),) for vector_D in vectors), "loops read as many numbers from each"
    assert all(vector_D.dtype == torch.float32 and not vector_D.is_cuda for vector_D in vectors), "loops read float32"
    return tuple(vector_D.detach().contiguous() for vector_D in vectors)
