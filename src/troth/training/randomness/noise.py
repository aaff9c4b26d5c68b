"""Dropout and other noise in a loss, as a function of the batch's seed, without any change to the model.

While `Noise` is active, every random function of PyTorch that the loss calls is answered by numbers that follow from a
seed (a tensor that travels in the batch), the number of the call, and the element's index: integer operations, so the same
bits on every machine, and ordinary tensor operations, so they go through `grad` and `vmap`. Random functions without such
an answer are an error that names them.
"""

from collections import Counter
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from troth.crypto import Seed, stream
from troth.training.errors import TaskError
from troth.training.randomness.answers import ANSWERS, COMPOSITE

_MASK = (1 << 32) - 1
_ODD = (0x7FEB352D, 0x31848BAB)  # below 2³¹: products of them with 32 bits do not leave an int64


def seed_tensor(seed: Seed) -> Tensor:
    """Two words of 32 bits, as the batch carries them."""
    return torch.from_numpy(stream(seed, "noise").integers(1 << 31, 2))


class Noise(TorchFunctionMode):
    """Answers random functions from a seed; one object per evaluation of the loss. Without a seed there is no noise."""

    def __init__(self, seed: Tensor | None) -> None:
        super().__init__()
        self._seed = seed
        self.calls = 0
        self.drawn: Counter[str] = Counter()  # by the name of the function that drew

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        answer = ANSWERS.get(func)
        if answer is not None:
            before = self.calls
            result = answer(self, func, *args, **kwargs)
            self.drawn[func.__name__] += self.calls - before
            return result
        if func in COMPOSITE:
            with self:  # this mode is off inside a handler, and the function calls random ones
                return _unguarded(func)(*args, **kwargs)
        return func(*args, **kwargs)

    def uniform(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Multiples of 2⁻²⁴ in [0, 1), float32."""
        return (self.words(shape, device) >> 8).float() * 2.0**-24

    def words(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Integers of 32 bits for the next call: the index, mixed with two keys made of the seed and the call's number."""
        if self._seed is None:
            raise TaskError("this batch carries no seed for dropout and noise: take it from Problem.batch")
        self.calls += 1
        low, high = self._seed.to(device).unbind()
        first = _mixed(_mixed(low + self.calls) ^ high)
        second = _mixed(_mixed(high + self.calls) ^ low)
        index = torch.arange(shape.numel(), device=device).view(shape)
        return _mixed((_mixed(index ^ first) + second) & _MASK)


def _mixed(x: Tensor) -> Tensor:
    """A bijection of 32 bits in which every input bit moves about half of the output bits."""
    x = x & _MASK
    x = x ^ (x >> 16)
    x = (x * _ODD[0]) & _MASK
    x = x ^ (x >> 15)
    x = (x * _ODD[1]) & _MASK
    return x ^ (x >> 16)


@cache
def _unguarded(func: FunctionType) -> FunctionType:
    """A Python function of PyTorch's, less its own look for modes: the functions that it calls are looked at instead."""
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    blind = {name: (lambda *_: False) for name in names}
    copy = FunctionType(
        func.__code__, {**func.__globals__, **blind}, func.__name__, func.__defaults__, func.__closure__
    )
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy
