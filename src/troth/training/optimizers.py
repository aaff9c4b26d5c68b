"""Optimizers whose every operation is rounded once, alone: the same bits on every CPU and GPU.

`a + alpha·b` in one kernel may be fused on one machine and not on another; fused Adam differs in 0.9 % of coordinates
after 20 steps. So: one multiplication or addition per operation, scalars rounded to the parameters' format beforehand,
powers by repeated multiplication instead of `pow`. Tests hold this to a NumPy transcription bit for bit.

An update is a pure function of (parameters, gradient, state, rate), so that many peers in one process can share it.
"""

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from math import prod
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from troth import kernels
from troth.aggregation import exact_norm
from troth.training.layout import Layout

# D coordinates

State = Mapping[str, Tensor]
_BLOCK = 1 << 18


class Optimizer(Protocol):
    def start(self, parameters_D: Tensor) -> State:
        """The state before the first step."""

    def update(self, parameters_D: Tensor, gradient_D: Tensor, state: State, rate: float) -> tuple[Tensor, State]:
        """New parameters and new state; the old ones stay as they were."""


@dataclass(frozen=True)
class SGD:
    """`x ← x − rate·(g + weight_decay·x)`, with momentum as in PyTorch: `b ← momentum·b + g`."""

    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _within("momentum", self.momentum)
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")

    def start(self, parameters_D: Tensor) -> State:
        return {"momentum": torch.zeros_like(parameters_D)}

    def update(self, parameters_D: Tensor, gradient_D: Tensor, state: State, rate: float) -> tuple[Tensor, State]:
        if _in_one_pass(parameters_D, gradient_D, state["momentum"]):
            moved_D, buffer_D = kernels.sgd(
                parameters_D,
                gradient_D,
                state["momentum"],
                rate=rate,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                nesterov=self.nesterov,
            )
            return moved_D, {"momentum": buffer_D}
        moved_D, buffer_D = torch.empty_like(parameters_D), torch.empty_like(parameters_D)
        for at in _blocks(parameters_D):
            pull = gradient_D[at]
            if self.weight_decay:
                pull = pull + parameters_D[at] * self.weight_decay
            # From a zero buffer this gives b = g in the first step, as PyTorch's special case does.
            buffer = torch.mul(state["momentum"][at], self.momentum, out=buffer_D[at]).add_(pull)
            step = (buffer * self.momentum).add_(pull) if self.nesterov else buffer
            torch.sub(parameters_D[at], step * rate, out=moved_D[at])
        return moved_D, {"momentum": buffer_D}


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), in PyTorch's formulation."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _within("beta1", self.beta1)
        _within("beta2", self.beta2)
        if self.epsilon <= 0 or self.weight_decay < 0:
            raise ValueError(f"epsilon must be positive and weight_decay not negative, got {self}")

    def start(self, parameters_D: Tensor) -> State:
        return {
            "mean": torch.zeros_like(parameters_D),
            "square": torch.zeros_like(parameters_D),
            "powers": torch.ones(2, dtype=torch.float64),
        }

    def update(self, parameters_D: Tensor, gradient_D: Tensor, state: State, rate: float) -> tuple[Tensor, State]:
        # β₁ᵗ and β₂ᵗ, one multiplication a step: `pow` differs in the last bit between C libraries.
        powers = state["powers"] * torch.tensor([self.beta1, self.beta2], dtype=torch.float64)
        power1, power2 = powers.tolist()

        if _in_one_pass(parameters_D, gradient_D, state["mean"], state["square"]):
            betas = (self.beta1, 1 - self.beta1, self.beta2, 1 - self.beta2)
            scales = (1 / (1 - power1), 1 / (1 - power2), self.epsilon, 1 - rate * self.weight_decay, rate)
            moved_D, mean_D, square_D = kernels.adamw(
                parameters_D, gradient_D, state["mean"], state["square"], scalars=(*betas, *scales)
            )
            return moved_D, {"mean": mean_D, "square": square_D, "powers": powers}
        moved_D, mean_D, square_D = (torch.empty_like(parameters_D) for _ in range(3))
        for at in _blocks(parameters_D):
            gradient = gradient_D[at]
            mean = torch.mul(state["mean"][at], self.beta1, out=mean_D[at]).add_(gradient * (1 - self.beta1))
            square = torch.mul(state["square"][at], self.beta2, out=square_D[at])
            square.add_((gradient * gradient).mul_(1 - self.beta2))
            # Times the reciprocal: CUDA divides by a scalar that way, CPUs do not, and the bits differ.
            spread = _root(square * (1 / (1 - power2))).add_(self.epsilon)
            step = (mean * (1 / (1 - power1))).div_(spread)
            torch.mul(parameters_D[at], 1 - rate * self.weight_decay, out=moved_D[at]).sub_(step.mul_(rate))
        return moved_D, {"mean": mean_D, "square": square_D, "powers": powers}


@dataclass(frozen=True)
class LAMB:
    """Adam's step for every tensor, scaled to the length of that tensor (You et al. 2020): large batches stay stable.

    `u = m̂/(√v̂ + ε) + weight_decay·x`, `x ← x − rate·(‖x‖/‖u‖)·u`. Tensors of one axis (biases, scales of norms) get neither
    decay nor scaling, as is usual. `bound` says where tensors begin; before, the whole vector counts as one.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    layout: Layout | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._adam.__post_init__()

    @property
    def _adam(self) -> AdamW:
        return AdamW(self.beta1, self.beta2, self.epsilon, self.weight_decay)

    def start(self, parameters_D: Tensor) -> State:
        return self._adam.start(parameters_D)

    def update(self, parameters_D: Tensor, gradient_D: Tensor, state: State, rate: float) -> tuple[Tensor, State]:
        powers = state["powers"] * torch.tensor([self.beta1, self.beta2], dtype=torch.float64)
        power1, power2 = powers.tolist()
        step_D, mean_D, square_D = (torch.empty_like(parameters_D) for _ in range(3))
        for at in _blocks(parameters_D):
            gradient = gradient_D[at]
            mean = torch.mul(state["mean"][at], self.beta1, out=mean_D[at]).add_(gradient * (1 - self.beta1))
            square = torch.mul(state["square"][at], self.beta2, out=square_D[at])
            square.add_((gradient * gradient).mul_(1 - self.beta2))
            spread = _root(square * (1 / (1 - power2))).add_(self.epsilon)
            torch.mul(mean, 1 / (1 - power1), out=step_D[at]).div_(spread)
        for tensor, scaled in self._tensors(len(parameters_D)):
            self._move(parameters_D[tensor], step_D[tensor], rate, scaled=scaled)
        return step_D, {"mean": mean_D, "square": square_D, "powers": powers}

    def _move(self, parameters_D: Tensor, step_D: Tensor, rate: float, *, scaled: bool) -> None:
        """Turn one tensor's step of Adam into its parameters, in place."""
        blocks, factor = _blocks(parameters_D), rate
        if scaled:
            for at in blocks:
                if self.weight_decay:
                    step_D[at].add_(parameters_D[at] * self.weight_decay)
            length, step_length = exact_norm(parameters_D), exact_norm(step_D)
            factor = rate * (length / step_length) if length > 0 and step_length > 0 else rate
        for at in blocks:
            torch.sub(parameters_D[at], step_D[at] * factor, out=step_D[at])

    def _tensors(self, size: int) -> Iterator[tuple[slice, bool]]:
        """Places of the model's tensors in the vector, and whether a tensor has its decay and its scale."""
        if self.layout is None:
            yield slice(0, size), True
            return
        assert self.layout.size == size, "bound to another model"
        start = 0
        for shape in self.layout.shapes:
            stop = start + prod(shape)
            yield slice(start, stop), len(shape) > 1
            start = stop


OPTIMIZERS: dict[str, type[SGD] | type[AdamW] | type[LAMB]] = {"sgd": SGD, "adamw": AdamW, "lamb": LAMB}


def bound(optimizer: Optimizer, layout: Layout) -> Optimizer:
    """The optimizer for a model with this layout: LAMB treats every tensor on its own."""
    if not isinstance(optimizer, LAMB):
        return optimizer
    own = copy(optimizer)
    object.__setattr__(own, "layout", layout)
    return own


def _in_one_pass(*vectors: Tensor) -> bool:
    """Tell whether a compiled loop does all operations number by number, with the same bits."""
    return kernels.compiled(len(vectors[0])) and kernels.fits(*vectors)


def _blocks(vector_D: Tensor) -> list[slice]:
    """Slices of the vector: coordinates are independent, and on CPUs a slice's intermediate results stay in the cache."""
    size = len(vector_D) if vector_D.is_cuda else _BLOCK
    return [slice(start, start + size) for start in range(0, len(vector_D), size)]


def _root(values_D: Tensor) -> Tensor:
    """The correctly rounded square root of float32 numbers.

    PyTorch's own on x86-64 is off by one bit in 0.7 % of numbers; NumPy's is the processor's instruction. Elsewhere by way of
    float64: even a root with its last bits wrong rounds right then, since no root of a 24-bit number is that near a tie.
    """
    if values_D.device.type == "cpu" and values_D.dtype == torch.float32:
        return torch.from_numpy(np.sqrt(values_D.numpy()))
    return values_D.double().sqrt().to(values_D.dtype)


def _within(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be from 0 to below 1, got {value}")
