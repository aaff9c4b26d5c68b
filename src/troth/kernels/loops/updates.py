"""Loops of optimizers in float32: every operation rounded once, alone."""

import numpy as np
from numpy.typing import NDArray

from troth.kernels.loops.jit import exact, numbers_at

# D coordinates


@exact
def sgd(
    addresses: NDArray[np.uintp],
    start: int,
    stop: int,
    rate: np.float32,
    momentum: np.float32,
    weight_decay: np.float32,
    decays: bool,
    nesterov: bool,
) -> None:
    """As `SGD.update`; without weight decay nothing is added, for 0·x is not 0 if x is infinite.

    Addresses are of parameters, gradient and buffer, and of the next parameters and buffer.
    """
    parameters_D, gradient_D = numbers_at(addresses[0], stop)[start:], numbers_at(addresses[1], stop)[start:]
    buffer_D, next_buffer_D = numbers_at(addresses[2], stop)[start:], numbers_at(addresses[4], stop)[start:]
    moved_D = numbers_at(addresses[3], stop)[start:]
    for i in range(len(parameters_D)):
        pull = gradient_D[i]
        if decays:
            pull = pull + parameters_D[i] * weight_decay
        buffer = buffer_D[i] * momentum + pull
        next_buffer_D[i] = buffer
        step = buffer * momentum + pull if nesterov else buffer
        moved_D[i] = parameters_D[i] - step * rate


@exact
def adamw(
    addresses: NDArray[np.uintp],
    start: int,
    stop: int,
    beta1: np.float32,
    rest1: np.float32,
    beta2: np.float32,
    rest2: np.float32,
    scale1: np.float32,
    scale2: np.float32,
    epsilon: np.float32,
    kept: np.float32,
    rate: np.float32,
) -> None:
    """As `AdamW.update`: `rest` is 1 − β, `scale` is 1/(1 − βᵗ), `kept` is 1 − rate·weight_decay.

    Addresses are of parameters, gradient, mean and square, and of the next parameters, mean and square.
    """
    parameters_D, gradient_D = numbers_at(addresses[0], stop)[start:], numbers_at(addresses[1], stop)[start:]
    mean_D, next_mean_D = numbers_at(addresses[2], stop)[start:], numbers_at(addresses[5], stop)[start:]
    square_D, next_square_D = numbers_at(addresses[3], stop)[start:], numbers_at(addresses[6], stop)[start:]
    moved_D = numbers_at(addresses[4], stop)[start:]
    for i in range(len(parameters_D)):
        gradient = gradient_D[i]
        mean = mean_D[i] * beta1 + gradient * rest1
        square = square_D[i] * beta2 + (gradient * gradient) * rest2
        next_mean_D[i] = mean
        next_square_D[i] = square
        spread = np.sqrt(square * scale2) + epsilon
        step = (mean * scale1) / spread
        moved_D[i] = parameters_D[i] * kept - step * rate
