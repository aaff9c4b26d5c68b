"""Optimizer steps in one pass, bit for bit against PyTorch's operations one by one."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.clip.nasty import PROPERTY, any_bits, finite, moderate, seeds
from troth.clip import kernels
from troth.training import Layout
from troth.training.optimizers import SGD, AdamW, bound
from troth.training.work import Bounded

MILLIONS = settings(max_examples=2, deadline=None, derandomize=True)

OPTIMIZERS: list[SGD | AdamW] = [
    SGD(),
    SGD(momentum=0.0, nesterov=False),
    SGD(momentum=0.7, nesterov=False, weight_decay=0.3),
    SGD(momentum=0.99, weight_decay=1e-4),
    AdamW(),
    AdamW(beta1=0.0, beta2=0.5, epsilon=1e-30, weight_decay=0.0),
    AdamW(floor=0.0, model_floor=0.9),
]


def bits(vector: Tensor) -> np.ndarray:
    """A NaN is a NaN: which of them comes out is the processor's business, and no aggregate holds one."""
    numbers = vector.numpy()
    return np.where(np.isnan(numbers), 0, numbers.view(np.uint32)) if numbers.dtype == np.float32 else numbers


def both_ways(options: SGD | AdamW, parameters_D: Tensor, gradients: list[Tensor], rate: float) -> None:
    """Several steps by each way, each with the state that it made itself, of a model of three tensors, one of them empty."""
    third = len(parameters_D) // 3
    layout = Layout(("first", "none", "last"), ((third,), (0, 5), (len(parameters_D) - third, 1)))
    optimizer = Bounded(bound(options, layout))
    with pytest.MonkeyPatch.context() as patch, np.errstate(invalid="ignore"):
        ends = []
        for way in (lambda *_: True, lambda *_: False):
            # There alone: exact lengths of few numbers are sums of another order, and stay what they are.
            patch.setattr(
                "troth.training.optimizers.kernels", SimpleNamespace(takes=way, sgd=kernels.sgd, adamw=kernels.adamw)
            )
            moved_D, state = parameters_D, optimizer.start(parameters_D)
            for gradient_D in gradients:
                moved_D, state = optimizer.update(moved_D, gradient_D, state, rate)
            ends.append({"moved": moved_D, **state})
    for name in ends[0]:
        assert np.array_equal(bits(ends[0][name]), bits(ends[1][name])), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@PROPERTY
@given(st.integers(65, 3000), seeds, st.sampled_from([1e-3, 0.1, 7.0, 1e-20]))
def test_the_same_bits_from_any_finite_numbers(optimizer: SGD | AdamW, size: int, seed: int, rate: float) -> None:
    for draw in (finite, moderate, any_bits):
        start_D = torch.from_numpy(draw(size, seed))
        both_ways(optimizer, start_D, [torch.from_numpy(draw(size, seed + step)) for step in range(1, 4)], rate)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@MILLIONS
@given(seeds)
def test_the_same_bits_from_millions_of_numbers(optimizer: SGD | AdamW, seed: int) -> None:
    start_D = torch.from_numpy(moderate(1_000_003, seed))
    both_ways(optimizer, start_D, [torch.from_numpy(finite(1_000_003, seed + 1)), start_D * 3], 0.01)


def test_other_formats_take_the_reference() -> None:
    """Float64 parameters are moved in float64."""
    size = kernels.LARGE
    start_D = torch.linspace(0, 1, size, dtype=torch.float64)
    for optimizer in OPTIMIZERS:
        moved_D, _ = optimizer.update(start_D, start_D, optimizer.start(start_D), 0.1)
        assert moved_D.dtype == torch.float64
