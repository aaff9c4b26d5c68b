"""Dropout and other noise in a loss, as a function of the batch's seed, without any change to the model.

While `Noise` is active, every random function of PyTorch that the loss calls is answered by numbers that follow from a
seed (a tensor that travels in the batch), the number of the call, and the element's index: integer operations, so the same
bits on every machine, and ordinary tensor operations, so they go through `grad` and `vmap`. Random functions without such
an answer are an error that names them. Functions whose gradient is random on some device have another one there (`lookups`).
"""

from collections import Counter
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from troth.crypto import Seed, derive
from troth.training.errors import TaskError
from troth.training.randomness import lookups
from troth.training.randomness.answers import ANSWERS, COMPOSITE
from troth.training.user_code import check_wanted

_COMPOSITE = COMPOSITE | lookups.COMPOSITE
_MASK = (1 << 32) - 1
_BLOCK = 64  # calls whose keys are made at once
_ODD = (0x7FEB352D, 0x31848BAB)  # below 2³¹: products of them with 32 bits do not leave an int64


def seed_tensor(seed: Seed) -> Tensor:
    """Two words of 32 bits, as the batch carries them."""
    raw = derive(seed, "noise")
    return torch.tensor([int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:8], "little")])


class Noise(TorchFunctionMode):
    """Answers random functions from a seed; one object per evaluation of the loss. Without a seed there is no noise."""

    def __init__(self, seed: Tensor | None) -> None:
        super().__init__()
        self._seed = seed
        self._keys = torch.empty(0)
        self.calls = 0
        self.drawn: Counter[str] = Counter()  # by the name of the function that drew

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        check_wanted()  # here, since this mode sees every operation of a loss
        kwargs = kwargs or {}
        answer = ANSWERS.get(func)
        if answer is not None:
            before = self.calls
            result = answer(self, func, *args, **kwargs)
            self.drawn[func.__name__] += self.calls - before
            return result
        if (instead := lookups.INSTEAD.get(func)) is not None:
            return instead(*args, **kwargs)
        if func in _COMPOSITE:
            with self:  # this mode is off inside a handler, and the function calls others that it answers
                return _unguarded(func)(*args, **kwargs)
        return func(*args, **kwargs)

    def uniform(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Multiples of 2⁻²⁴ in [0, 1), float32."""
        return (self.words(shape, device) >> 8).float() * 2.0**-24

    def words(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Integers of 32 bits for the next call: the index, mixed with two keys made of the seed and the call's number."""
        if shape.numel() > _MASK:
            raise TaskError(f"a random tensor of {shape.numel():,} elements is too large: at most {_MASK:,}")
        if self._seed is None:
            raise TaskError("this batch carries no seed for dropout and noise: take it from Problem.batch")
        if self.calls % _BLOCK == 0:
            self._keys = _keys(self._seed.to(device), self.calls)
        first, second = self._keys.to(device)[:, self.calls % _BLOCK].unbind()
        self.calls += 1
        index = torch.arange(shape.numel(), device=device).view(shape)
        return _mix_(_mix_(index ^ first).add_(second).bitwise_and_(_MASK))


def _keys(seed: Tensor, start: int) -> Tensor:
    """Two keys for each of the next calls, in one row each."""
    number = torch.arange(start, start + _BLOCK, device=seed.device)
    swapped = seed.flip(0)[:, None]
    return _mix_(_mix_((seed[:, None] + number) & _MASK) ^ swapped)


def _mix_(x: Tensor) -> Tensor:
    """Replace numbers of 32 bits by a bijection of them in which every input bit moves about half of the output bits."""
    x.bitwise_xor_(x >> 16).mul_(_ODD[0]).bitwise_and_(_MASK)
    x.bitwise_xor_(x >> 15).mul_(_ODD[1]).bitwise_and_(_MASK)
    return x.bitwise_xor_(x >> 16)


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
