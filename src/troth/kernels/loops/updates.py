"""Loops of optimizers in float32: every operation rounded once, alone."""

import numpy as np
from numpy.typing import NDArray

from troth.kernels.loops.jit import exact, numbers_at

# D coordinates, T tensors of the model


@exact
def sgd(
    addresses: NDArray[np.uintp],
    start: int,
    stop: int,
    momentum: np.float32,
    weight_decay: np.float32,
    decays: bool,
    nesterov: bool,
) -> None:
    """The step of `SGD`, before the rate; without weight decay nothing is added, for 0·x is not 0 if x is infinite.

    Addresses are of parameters, gradient and buffer, and of the step and the next buffer.
    """
    parameters_D, gradient_D = numbers_at(addresses[0], stop)[start:], numbers_at(addresses[1], stop)[start:]
    buffer_D, next_buffer_D = numbers_at(addresses[2], stop)[start:], numbers_at(addresses[4], stop)[start:]
    step_D = numbers_at(addresses[3], stop)[start:]
    for i in range(len(parameters_D)):
        pull = gradient_D[i]
        if decays:
            pull = pull + parameters_D[i] * weight_decay
        buffer = buffer_D[i] * momentum + pull
        next_buffer_D[i] = buffer
        step_D[i] = buffer * momentum + pull if nesterov else buffer


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
    stops_T: NDArray[np.int64],
    floors_T: NDArray[np.float32],
) -> None:
    """The step of `AdamW`, before the rate: `rest` is 1 − β, `scale` is 1/(1 − βᵗ). Each tensor has its own floor.

    Addresses are of parameters, gradient, mean and square, and of the step, the next mean and the next square.
    """
    first = start
    for tensor in range(len(stops_T)):
        last, floor = min(stop, stops_T[tensor]), floors_T[tensor]
        if last <= first:
            continue
        gradient_D, step_D = numbers_at(addresses[1], last)[first:], numbers_at(addresses[4], last)[first:]
        mean_D, next_mean_D = numbers_at(addresses[2], last)[first:], numbers_at(addresses[5], last)[first:]
        square_D, next_square_D = numbers_at(addresses[3], last)[first:], numbers_at(addresses[6], last)[first:]
        for i in range(len(gradient_D)):
            gradient = gradient_D[i]
            mean = mean_D[i] * beta1 + gradient * rest1
            square = square_D[i] * beta2 + (gradient * gradient) * rest2
            next_mean_D[i] = mean
            next_square_D[i] = square
            root = np.sqrt(square * scale2)
            # A NaN stays one, as in PyTorch's clamp.
            step_D[i] = (mean * scale1) / ((floor if root < floor else root) + epsilon)
        first = last


@exact
def move(parameters: int, moved: int, start: int, stop: int, kept: np.float32, decays: bool, rate: np.float32) -> None:
    """Turn a step into the next parameters, in place: `kept·x − rate·step`."""
    parameters_D, moved_D = numbers_at(parameters, stop)[start:], numbers_at(moved, stop)[start:]
    for i in range(len(moved_D)):
        before = parameters_D[i] * kept if decays else parameters_D[i]
        moved_D[i] = before - moved_D[i] * rate
