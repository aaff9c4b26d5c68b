"""Optimizers whose every operation is rounded once, alone: the same bits on every CPU and GPU.

`a + alpha·b` in one kernel may be fused on one machine and not on another; fused Adam differs in 0.9 % of coordinates
after 20 steps. So: one multiplication or addition per operation, scalars rounded to the parameters' format beforehand,
powers by repeated multiplication instead of `pow`. Tests hold this to a NumPy transcription bit for bit.

An update is a pure function of (parameters, gradient, state, rate), so that many peers in one process can share it.

What one lie can do (SPEC U7). Adam divides by `√v̂`, which is next to nothing where no honest gradient ever is: dark
pixels, rare words, dead units. There a lie of 1 % of a gradient moved weights by three rates at once, and by thirty in all.
So denominators have floors. The mean carries a lie on for about ten steps (β₁); in all it moves such a weight by its share
of the aggregate, over the floor, times the rate: in proportion to the lie, as SGD does. The mean square keeps it for about
1,000 steps (β₂), but a larger `v` only makes steps shorter. `bounded` limits every step besides.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from troth.clip import kernels
from troth.clip.exact import DEPTH, LANES, exact_norm
from troth.specs import build, parse_spec, pick
from troth.training.weights import Layout

# D coordinates, T tensors of the model

State = Mapping[str, Tensor]
Shorten = Callable[[float], float]  # factor of a step, from its length

_LEAST_NORMAL = 2.0**-126
_LEAST_OF_GRADIENT = 1 / 4  # least limit of SGD, relative to the gradient, which U3 limits …
_LEAST_OF_ONES = 1 / 1024  # … and of Adam's, relative to a step of one rate in each coordinate
_MOST_TRUST = 10.0  # of LAMB in a tensor, as in its authors' code: without gradients it would be 1/weight_decay
_BLOCK = 1 << 18


class OptimizerStep(NamedTuple):
    """A step of an optimizer: what it led to, and how long it was."""

    parameters_D: Tensor
    state: State
    length: float  # of the change, without decoupled decay, over the rate; before the factor
    factor: float


def _as_it_is(_length: float) -> float:
    return 1.0


class Optimizer(ABC):
    """A rule for the next parameters."""

    @abstractmethod
    def start(self, parameters_D: Tensor) -> State:
        """The state before the first step."""

    @abstractmethod
    def step(
        self, parameters_D: Tensor, gradient_D: Tensor, state: State, rate: float, shorten: Shorten = _as_it_is
    ) -> OptimizerStep:
        """New parameters and state; the old ones stay as they were. `shorten` gives the factor of the step from its length."""

    def update(self, parameters_D: Tensor, gradient_D: Tensor, state: State, rate: float) -> tuple[Tensor, State]:
        """The same, for a step that nothing shortens."""
        moved = self.step(parameters_D, gradient_D, state, rate)
        return moved.parameters_D, moved.state

    def least_limit(self, gradient_D: Tensor) -> float:
        """The least limit that a step may have, whatever was usual: or a model that stood still would never move again."""
        return _LEAST_OF_ONES * math.sqrt(len(gradient_D))


@dataclass(frozen=True)
class SGD(Optimizer):
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

    def least_limit(self, gradient_D: Tensor) -> float:
        return _LEAST_OF_GRADIENT * exact_norm(gradient_D)

    def step(
        self, parameters_D: Tensor, gradient_D: Tensor, state: State, rate: float, shorten: Shorten = _as_it_is
    ) -> OptimizerStep:
        if kernels.takes(parameters_D, gradient_D, state["momentum"]):
            vectors, options = (parameters_D, gradient_D, state["momentum"]), (self.momentum, self.weight_decay)
            moved_D, buffer_D, length = kernels.sgd(*vectors, rate, *options, self.nesterov, (LANES, DEPTH))
            factor = shorten(length)
            if factor != 1:  # hardly ever: all is done again
                moved_D, buffer_D, _ = kernels.sgd(*vectors, rate * factor, *options, self.nesterov, (LANES, DEPTH))
            return OptimizerStep(moved_D, {"momentum": buffer_D}, length, factor)
        moved_D, buffer_D = torch.empty_like(parameters_D), torch.empty_like(parameters_D)
        for at in _blocks(parameters_D):
            pull = gradient_D[at]
            if self.weight_decay:
                pull = pull + parameters_D[at] * self.weight_decay
            # From a zero buffer this gives b = g in the first step, as PyTorch's special case does.
            buffer = torch.mul(state["momentum"][at], self.momentum, out=buffer_D[at]).add_(pull)
            moved_D[at] = (buffer * self.momentum).add_(pull) if self.nesterov else buffer
        length = exact_norm(moved_D)
        factor = shorten(length)
        for at in _blocks(parameters_D):
            torch.sub(parameters_D[at], moved_D[at].mul_(rate * factor), out=moved_D[at])
        return OptimizerStep(moved_D, {"momentum": buffer_D}, length, factor)


class _Moments(NamedTuple):
    """Adam's averages after a step, the factors that make up for their start from zero, and the floors of each tensor."""

    mean_D: Tensor
    square_D: Tensor
    powers: Tensor
    energies: Tensor
    scales: tuple[float, float]
    floors_T: Sequence[float]

    @property
    def state(self) -> State:
        return {"mean": self.mean_D, "square": self.square_D, "powers": self.powers, "energies": self.energies}


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), in PyTorch's formulation, but for floors under its
    denominators (SPEC U7): `max(√v̂, floor·rms of its tensor, model_floor·rms of the model) + ε`.

    An rms is the root of the mean of `v̂`, known from the lengths of the tensor's gradients alone: `e ← β₂·e + (1 − β₂)·‖g‖²`. A
    tensor without gradients has no floor of its own; the model's catches it. `bound` says where tensors begin.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    floor: float = 0.3
    model_floor: float = 0.03
    layout: Layout | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        _within("beta1", self.beta1)
        _within("beta2", self.beta2)
        _within("floor", self.floor)
        _within("model_floor", self.model_floor)
        if self.epsilon <= 0 or self.weight_decay < 0:
            raise ValueError(f"epsilon must be positive and weight_decay not negative, got {self}")

    def start(self, parameters_D: Tensor) -> State:
        tensors = _tensors(self.layout, len(parameters_D))
        return {
            "mean": torch.zeros_like(parameters_D),
            "square": torch.zeros_like(parameters_D),
            "powers": torch.ones(2, dtype=torch.float64),
            "energies": torch.zeros(len(tensors), dtype=torch.float64),
        }

    def step(
        self, parameters_D: Tensor, gradient_D: Tensor, state: State, rate: float, shorten: Shorten = _as_it_is
    ) -> OptimizerStep:
        kept, tensors = 1 - rate * self.weight_decay, _tensors(self.layout, len(parameters_D))
        if kernels.takes(parameters_D, gradient_D, state["mean"], state["square"]):
            powers, energies, scales, floors_T = self._scales(gradient_D, state, tensors)
            vectors = parameters_D, gradient_D, state["mean"], state["square"]
            scalars = (self.beta1, 1 - self.beta1, self.beta2, 1 - self.beta2, *scales, self.epsilon, kept)
            floors = np.array([at.stop for at, _ in tensors], np.int64), np.array(floors_T, np.float32)
            *after, length = kernels.adamw(*vectors, (*scalars, rate), floors, (LANES, DEPTH))
            factor = shorten(length)
            if factor != 1:  # hardly ever: all is done again
                *after, _ = kernels.adamw(*vectors, (*scalars, rate * factor), floors, (LANES, DEPTH))
            moved_D, mean_D, square_D = after
            moments = _Moments(mean_D, square_D, powers, energies, scales, floors_T)
            return OptimizerStep(moved_D, moments.state, length, factor)
        moments = self.moments(gradient_D, state, tensors)
        moved_D = torch.empty_like(parameters_D)
        for (tensor, _), floor in zip(tensors, moments.floors_T, strict=True):
            self.direction(moments, tensor, floor, out=moved_D[tensor])
        length = exact_norm(moved_D)
        factor = shorten(length)
        for at in _blocks(parameters_D):
            change = moved_D[at].mul_(rate * factor)
            torch.sub(parameters_D[at] * kept, change, out=moved_D[at])
        return OptimizerStep(moved_D, moments.state, length, factor)

    def moments(self, gradient_D: Tensor, state: State, tensors: Sequence["_Place"]) -> _Moments:
        """Averages after this gradient, in new tensors."""
        powers, energies, scales, floors_T = self._scales(gradient_D, state, tensors)
        mean_D, square_D = torch.empty_like(gradient_D), torch.empty_like(gradient_D)
        for at in _blocks(gradient_D):
            gradient = gradient_D[at]
            torch.mul(state["mean"][at], self.beta1, out=mean_D[at]).add_(gradient * (1 - self.beta1))
            square = torch.mul(state["square"][at], self.beta2, out=square_D[at])
            square.add_((gradient * gradient).mul_(1 - self.beta2))
        return _Moments(mean_D, square_D, powers, energies, scales, floors_T)

    def direction(self, moments: _Moments, tensor: slice, floor: float, out: Tensor) -> None:
        """`m̂/(max(√v̂, floor) + ε)` of one tensor, which is written to `out`."""
        for at in _blocks(out):
            mean, square = moments.mean_D[tensor][at], moments.square_D[tensor][at]
            # Times the reciprocal: CUDA divides by a scalar that way, CPUs do not, and the bits differ.
            spread = _root(square * moments.scales[1]).clamp_(min=floor).add_(self.epsilon)
            torch.mul(mean, moments.scales[0], out=out[at]).div_(spread)

    def _scales(
        self, gradient_D: Tensor, state: State, tensors: Sequence["_Place"]
    ) -> tuple[Tensor, Tensor, tuple[float, float], list[float]]:
        """Powers of β, energies of the tensors, and what follows: factors of the averages, and floors of the tensors."""
        # β₁ᵗ and β₂ᵗ, one multiplication a step: `pow` differs in the last bit between C libraries.
        before1, before2 = state["powers"].tolist()
        power1, power2 = before1 * self.beta1, before2 * self.beta2
        scales = 1 / (1 - power1), 1 / (1 - power2)
        energies_T = [
            energy * self.beta2 + _energy(gradient_D[at]) * (1 - self.beta2)
            for energy, (at, _) in zip(state["energies"].tolist(), tensors, strict=True)
        ]
        whole = _rms(math.fsum(energies_T) * scales[1], len(gradient_D)) * self.model_floor
        floors_T = [
            _as_float32(max(_rms(energy * scales[1], at.stop - at.start) * self.floor, whole))
            for energy, (at, _) in zip(energies_T, tensors, strict=True)
        ]
        powers = torch.tensor([power1, power2], dtype=torch.float64)
        return powers, torch.tensor(energies_T, dtype=torch.float64), scales, floors_T


@dataclass(frozen=True)
class LAMB(AdamW):
    """Adam's step for every tensor, scaled to the length of that tensor (You et al. 2020): large batches stay stable.

    `u = m̂/(√v̂ + ε) + weight_decay·x`, `x ← x − rate·min(10, ‖x‖/‖u‖)·u′`, where `u′` is `u` with AdamW's floors. Were the
    scale taken from `u′`, it would undo what the floors take away. Tensors of one axis (biases, scales of norms) get neither
    decay nor scaling, as is usual. `bound` says where tensors begin; before, the whole vector counts as one.
    """

    epsilon: float = 1e-6

    def step(
        self, parameters_D: Tensor, gradient_D: Tensor, state: State, rate: float, shorten: Shorten = _as_it_is
    ) -> OptimizerStep:
        tensors = _tensors(self.layout, len(parameters_D))
        moments = self.moments(gradient_D, state, tensors)
        step_D, trusts = torch.empty_like(parameters_D), list[float]()
        for (at, scaled), floor in zip(tensors, moments.floors_T, strict=True):
            trusts.append(self._trust(parameters_D[at], moments, at, out=step_D[at]) if scaled else 1.0)
            self.direction(moments, at, floor, out=step_D[at])
            if scaled:
                self._decay(parameters_D[at], step_D[at])
        lengths = [trust * exact_norm(step_D[at]) for trust, (at, _) in zip(trusts, tensors, strict=True)]
        length = math.sqrt(math.fsum(own * own for own in lengths))
        factor = shorten(length)
        for trust, (tensor, _) in zip(trusts, tensors, strict=True):
            for at in _blocks(step_D[tensor]):
                change = step_D[tensor][at].mul_(rate * trust * factor)
                torch.sub(parameters_D[tensor][at], change, out=step_D[tensor][at])
        return OptimizerStep(step_D, moments.state, length, factor)

    def _trust(self, parameters_D: Tensor, moments: _Moments, tensor: slice, out: Tensor) -> float:
        """`‖x‖/‖u‖` of one tensor, with `u` as it is without floors, which is left in `out`."""
        self.direction(moments, tensor, 0.0, out=out)
        self._decay(parameters_D, out)
        length, of_step = exact_norm(parameters_D), exact_norm(out)
        return min(_MOST_TRUST, length / of_step) if length > 0 and of_step > 0 else 1.0

    def _decay(self, parameters_D: Tensor, step_D: Tensor) -> None:
        if self.weight_decay:
            for at in _blocks(step_D):
                step_D[at].add_(parameters_D[at] * self.weight_decay)


OPTIMIZERS: dict[str, type[SGD] | type[AdamW] | type[LAMB]] = {"sgd": SGD, "adamw": AdamW, "lamb": LAMB}


def make_optimizer(spec: str) -> Optimizer:
    """`sgd`, or `adamw:beta2=0.99`."""
    name, options = parse_spec(spec)
    return build(pick(OPTIMIZERS, name, "optimizer"), options, spec)


def bound(optimizer: Optimizer, layout: Layout) -> Optimizer:
    """The optimizer for a model with this layout: AdamW and LAMB treat every tensor on its own."""
    if not isinstance(optimizer, AdamW):
        return optimizer
    own = copy(optimizer)
    object.__setattr__(own, "layout", layout)
    return own


_Place = tuple[slice, bool]


def _tensors(layout: Layout | None, size: int) -> list[_Place]:
    """Places of the model's tensors in the vector, and whether a tensor has several axes; without a layout it is one."""
    if layout is None:
        return [(slice(0, size), True)]
    assert layout.size == size, "bound to another model"
    found, start = list[_Place](), 0
    for shape in layout.shapes:
        stop = start + prod(shape)
        found.append((slice(start, stop), len(shape) > 1))
        start = stop
    return found


def _energy(gradient_D: Tensor) -> float:
    """The square of a length. What is not finite says nothing: no honest aggregate holds such, and no floor may."""
    length = exact_norm(gradient_D)
    return length * length if math.isfinite(length) else 0.0


def _rms(energy: float, size: int) -> float:
    return math.sqrt(energy / size) if size else 0.0


def _as_float32(number: float) -> float:
    """A floor as all machines see it: rounded once, and none where some would flush it to zero."""
    return float(np.float32(number)) if number >= _LEAST_NORMAL else 0.0


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


# Learning rates as tables: one number per step, the same on every machine, so that a run can name it by its digest.
#
# Computed with exact decimal arithmetic: the `cos` of C libraries differs in its last bit.


Schedule = tuple[float, ...]  # one rate per step; steps beyond the end keep the last one

_STAGES = 5  # of `restarts`
_PI = Decimal("3.14159265358979323846264338327950288")


def constant(rate: float, steps: int) -> Schedule:
    """The same rate at every step."""
    return (rate,) * steps


def cosine(rate: float, steps: int) -> Schedule:
    """Rates from `rate` down to nearly 0 along half a cosine: `rate·(1 + cos(π·t/steps))/2`."""
    with localcontext(prec=34):
        return tuple(float(Decimal(rate) * (1 + _cos_pi(t, steps)) / 2) for t in range(steps))


def linear(rate: float, steps: int) -> Schedule:
    """Rates from `rate` down to nearly 0 along a line: `rate·(1 − t/steps)`."""
    return tuple(rate * ((steps - t) / steps) for t in range(steps))


def step(rate: float, steps: int) -> Schedule:
    """The same rate for three quarters of the steps, and a tenth of it from there on."""
    return tuple(rate if 4 * t < 3 * steps else rate / 10 for t in range(steps))


def restarts(rate: float, steps: int) -> Schedule:
    """Five stages, each twice as long as the one before, at half its rate: `rate·2⁻ᵏ`, `k = ⌊log₂(1 + 31·t/steps)⌋`.

    Restarted-BTARD-SGD (Gorbunov et al. 2022, strongly convex case): a stage halves the squared distance to the optimum,
    which takes twice as many steps at half the rate once noise dominates. The method keeps no momentum, so a restart from
    where the last stage ended is a change of rate and nothing else.
    """
    whole = (1 << _STAGES) - 1  # 1 + 2 + 4 + … : the steps, in lengths of the first stage
    return tuple(rate / (1 << (((steps + whole * t) // steps).bit_length() - 1)) for t in range(steps))


def warmed_up(table: Schedule, warmup: int) -> Schedule:
    """The first `warmup` rates scaled up along a line, so that the first step is `1/warmup` of the full one."""
    return tuple(rate * min(1.0, (t + 1) / warmup) if warmup else rate for t, rate in enumerate(table))


def rate_at(table: Schedule, step: int) -> float:
    return table[min(step, len(table) - 1)]


SCHEDULES: dict[str, Callable[[float, int], Schedule]] = {
    "constant": constant,
    "cosine": cosine,
    "linear": linear,
    "step": step,
    "restarts": restarts,
}


def _cos_pi(numerator: int, denominator: int) -> Decimal:
    """cos(π·numerator/denominator) by its Taylor series, for angles from 0 to π."""
    if 2 * numerator > denominator:
        return -_cos_pi(denominator - numerator, denominator)  # below a quarter turn the series converges fast
    squared = (_PI * numerator / denominator) ** 2
    term = total = Decimal(1)
    for k in range(1, 16):
        term = -term * squared / ((2 * k - 1) * (2 * k))
        total += term
    return total
