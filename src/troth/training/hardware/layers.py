"""Float64 by layer: a layer's sums in float64, and only float32 between layers.

Within a layer sums are so much more precise than what is kept of them that their order hardly ever shows: machines of
different kinds would compute the same bits in most gradients. `troth doctor` measures in how many, and at what cost.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from troth.training.task import Task

_SUM_ROUNDING = 4 * 2.0**-52  # by so much of itself another order of its terms may change a sum in float64
_SPLIT = 2.0**9 + 1  # leaves a float64 44 of its 53 bits (Veltkamp's splitting)


def rounded_by_layer(task: Task, *, shaken: bool = False) -> Task:
    """The same task, each layer's outputs rounded to float32, and on the way back the gradients of these outputs.

    To be computed in float64. `shaken`: with sums that are off as another machine's may be.
    """

    def model() -> nn.Module:
        module = task.model()
        for layer in module.modules():
            if not any(True for _ in layer.children()):
                layer.register_forward_hook(lambda _layer, _inputs, outputs: tree_map_only(Tensor, rounded, outputs))
        return module

    def rounded(sums: Tensor) -> Tensor:
        if sums.dtype != torch.float64:
            return sums
        if not shaken:
            return sums.float().double()  # autograd takes the gradient the same way: through float32
        kept: Tensor = _ShakenBackward.apply(_ShakenForward.apply(sums).float().double())  # type: ignore[no-untyped-call]
        return kept

    return changed(task, model=model)


def shaken_sums(sums: Tensor) -> Tensor:
    """Sums in float64 as another order of their terms might have them; those that are exact have no other."""
    upper = sums * _SPLIT
    exact = upper - (upper - sums) == sums  # few bits: nothing was rounded, in whatever order it was added
    index = torch.arange(sums.numel(), device=sums.device).view(sums.shape)
    signs = 1 - 2 * ((index * 40503 >> 7) & 1)  # any that look like chance, and need none
    return torch.where(exact, sums, sums * (1 + signs.double() * _SUM_ROUNDING))


def changed(task: Task, **attributes: Any) -> Task:
    """A copy of a task with other attributes; tasks are frozen, and some of their options are no fields."""
    other = copy.copy(task)
    for name, value in attributes.items():
        object.__setattr__(other, name, value)
    return other


class _ShakenForward(torch.autograd.Function):
    """Shakes the numbers, before they are rounded."""

    generate_vmap_rule = True

    @staticmethod
    def forward(sums: Tensor) -> Tensor:
        return shaken_sums(sums)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is needed on the way back."""

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


class _ShakenBackward(torch.autograd.Function):
    """Shakes their gradients, before they are rounded."""

    generate_vmap_rule = True

    @staticmethod
    def forward(kept: Tensor) -> Tensor:
        return kept.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is needed on the way back."""

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return shaken_sums(gradient)
