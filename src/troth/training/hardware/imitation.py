"""Gradients as a machine of another class would compute them."""

import torch
from torch import Tensor

from troth.crypto import Seed, Stream, derive, stream
from troth.training.problem import Problem

# D coordinates

# Four units in the last place of a float32: with them a class differs from this machine on digits as a CPU and an H200
# do, by a median of 3·10⁻⁶ of a gradient.
_ROUNDING = 4 * 2.0**-23
STRESS = 1024  # times stronger than hardware's rounding


def gradient_on(problem: Problem, hardware: str, parameters_D: Tensor, seed: Seed) -> Tensor:
    """The gradient of a seed as a machine of this class would compute it; "" is this machine.

    Another class is imitated: its inputs are off by a few units in the last place, as class and seed decide. The network then
    treats these like any rounding errors: it carries them along, and now and then flips a ReLU.
    """
    return _shaken_gradient(problem, hardware, parameters_D, seed, times=1.0 if hardware else 0.0)


def bent_gradient(problem: Problem, parameters_D: Tensor, seed: Seed) -> Tensor:
    """`g + (g(2v) − 2g(v) + g)`: off from the gradient by its jumps alone, under much stronger shaking v."""
    own_D, near_D, far_D = (
        _shaken_gradient(problem, "stress", parameters_D, seed, times=times).cpu().double()
        for times in (0, STRESS / 2, STRESS)
    )
    return far_D - 2 * near_D + 2 * own_D


def _shaken_gradient(problem: Problem, hardware: str, parameters_D: Tensor, seed: Seed, *, times: float) -> Tensor:
    batch = problem.batch(seed)
    if times:
        # The seed counts too: hardware rounds every batch in another way, it does not add one fixed error.
        key = derive(seed, "hardware", hardware)
        batch = {name: _shaken(tensor, stream(key, "batch", name), times) for name, tensor in batch.items()}
        parameters_D = _shaken(parameters_D, stream(key, "parameters"), times)
    return problem.gradients(parameters_D, [batch])[1][0]


def _shaken(numbers: Tensor, draw: Stream, times: float) -> Tensor:
    if not numbers.is_floating_point():
        return numbers
    shares = torch.from_numpy(2 * draw.uniform(numbers.numel()) - 1).view(numbers.shape).to(numbers.device)
    return (numbers.double() * (1 + shares * (times * _ROUNDING))).to(numbers.dtype)
