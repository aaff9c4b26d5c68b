"""A loss without chance: PyTorch's random functions follow from the batch's seed, and others' generators are noticed.

While `SeededNoise` is active, every random function of PyTorch that the loss calls is answered by numbers that follow from a
seed (a tensor that travels in the batch), the number of the call, and the element's index: integer operations, so the same
bits on every machine, and ordinary tensor operations, so they go through `grad` and `vmap`. Random functions without such
an answer are an error that names them. A lookup whose gradient does not repeat on a GPU has another one there.
"""

import builtins
import importlib
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from math import log, pi, sqrt
from types import FrameType, FunctionType
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from troth.crypto import Seed, derive
from troth.training.task import TaskError
from troth.training.user_code import check_wanted, is_users

_MASK = (1 << 32) - 1
_BLOCK = 64  # calls whose keys are made at once
_ODD = (0x7FEB352D, 0x31848BAB)  # below 2³¹: products of them with 32 bits do not leave an int64


def seed_tensor(seed: Seed) -> Tensor:
    """Two words of 32 bits, as the batch carries them."""
    raw = derive(seed, "noise")
    return torch.tensor([int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:8], "little")])


class SeededNoise(TorchFunctionMode):
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
        if (instead := INSTEAD.get(func)) is not None:
            return instead(*args, **kwargs)
        if func in COMPOSITE:
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


# Answers: each gets the noise, the function that was called, and its arguments.


def _keep(noise: SeededNoise, tensor: Tensor, p: float, shape: torch.Size | None = None) -> Tensor:
    """1/(1 − p) where an element stays, 0 where it is dropped."""
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if p == 1:
        return torch.zeros_like(tensor)
    words = noise.words(tensor.shape if shape is None else shape, tensor.device)
    return (words >= int(p * (1 << 32))).to(tensor.dtype) / (1 - p)


def _dropped(noise: SeededNoise, tensor: Tensor, p: float, inplace: bool, shape: torch.Size | None = None) -> Tensor:
    keep = _keep(noise, tensor, p, shape)
    return tensor.mul_(keep) if inplace else tensor * keep


def _dropout(
    noise: SeededNoise, func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    return _dropped(noise, input, p, inplace) if training and p > 0 else input


def _native_dropout(noise: SeededNoise, func: Any, input: Tensor, p: float, train: bool) -> Tensor:
    return _dropped(noise, input, p, func.__name__.endswith("_")) if train and p > 0 else input


def _channel_dropout(dimensions: int | None) -> Callable[..., Tensor]:
    """`dropout1d` to `dropout3d`: whole channels. Inputs without a batch have one dimension less than others."""

    def dropout(
        noise: SeededNoise, func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return input
        leading = 1 if dimensions is not None and input.dim() == dimensions + 1 else 2
        shape = torch.Size([*input.shape[:leading], *[1] * (input.dim() - leading)])
        return _dropped(noise, input, p, inplace, shape)

    return dropout


def _alpha_dropout(
    noise: SeededNoise, func: Any, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Klambauer et al. 2017: dropped elements get SELU's lower limit, then mean and variance are restored."""
    if not training or p == 0:
        return input
    by_channel = "feature" in func.__name__
    shape = torch.Size([*input.shape[:2], *[1] * (input.dim() - 2)]) if by_channel else input.shape
    limit = -1.7580993408473766
    scale = 1 / sqrt((1 - p) * (1 + p * limit**2)) if p < 1 else 0.0
    keep = noise.words(shape, input.device) >= int(p * (1 << 32))
    result = torch.where(keep, input, limit) * scale - p * limit * scale
    return input.copy_(result) if inplace else result


def _attention(
    noise: SeededNoise,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    """The fused kernel where nothing is dropped, and its formula (as in PyTorch's documentation) otherwise."""
    if dropout_p == 0:
        result: Tensor = func(query, key, value, attn_mask, 0.0, is_causal, **options)
        return result
    if options.get("enable_gqa"):
        groups = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scale = options.get("scale")
    scores = query @ key.transpose(-2, -1) * (1 / sqrt(query.size(-1)) if scale is None else scale)
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~allowed, float("-inf"))
    if attn_mask is not None:
        barred = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, float("-inf")) if barred else scores + attn_mask
    weights = torch.softmax(scores, dim=-1).to(value.dtype)
    return weights * _keep(noise, weights, dropout_p) @ value


def _fill(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """In-place draws: `tensor.normal_()`."""

    def fill(noise: SeededNoise, func: Any, tensor: Tensor, *args: Any, generator: Any = None, **named: Any) -> Tensor:
        named = {{"from": "low", "to": "high"}.get(name, name): value for name, value in named.items()}
        return tensor.copy_(formula(noise, tensor.shape, tensor.device, *args, **named))

    return fill


def _like(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Draws of a tensor's shape: `torch.randn_like(tensor)`."""

    def like(noise: SeededNoise, func: Any, tensor: Tensor, *args: Any, **options: Any) -> Tensor:
        device, dtype = options.get("device") or tensor.device, options.get("dtype") or tensor.dtype
        return formula(noise, tensor.shape, torch.device(device), *args).to(dtype)

    return like


def _make(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Draws of a given shape: `torch.randn(2, 3)`."""

    def make(noise: SeededNoise, func: Any, *size: Any, **options: Any) -> Tensor:
        size = tuple(options.get("size", size))
        shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
        drawn = formula(noise, shape, torch.device(options.get("device") or "cpu"))
        return drawn.to(options.get("dtype") or torch.get_default_dtype())

    return make


def _uniform(
    noise: SeededNoise, shape: torch.Size, device: torch.device, low: float = 0.0, high: float = 1.0
) -> Tensor:
    return low + noise.uniform(shape, device) * (high - low)


def _normal(noise: SeededNoise, shape: torch.Size, device: torch.device, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Box and Muller's method; its last bits may differ between machines, like those of any loss."""
    radius = (-2 * (1 - noise.uniform(shape, device)).log()).sqrt()
    return mean + std * (radius * (2 * pi * noise.uniform(shape, device)).cos())


def _exponential(noise: SeededNoise, shape: torch.Size, device: torch.device, lambd: float = 1.0) -> Tensor:
    return -(1 - noise.uniform(shape, device)).log().clamp(max=log(1 - 2.0**-25)) / lambd


def _coin(noise: SeededNoise, shape: torch.Size, device: torch.device, p: Any = 0.5) -> Tensor:
    heads: Tensor = noise.uniform(shape, device) < p
    return heads.float()


def _bernoulli(noise: SeededNoise, func: Any, tensor: Tensor, p: float | None = None, **options: Any) -> Tensor:
    return _coin(noise, tensor.shape, tensor.device, tensor if p is None else p).to(tensor.dtype)


def _randint(noise: SeededNoise, func: Any, *args: Any, **options: Any) -> Tensor:
    *bounds, size = *args, *(options[name] for name in ("low", "high", "size") if name in options)
    low, high = bounds if len(bounds) == 2 else (0, bounds[0])
    words = noise.words(torch.Size(size), torch.device(options.get("device") or "cpu"))
    numbers: Tensor = low + ((words * (high - low)) >> 32)
    return numbers.to(options.get("dtype") or torch.int64)


def _randperm(noise: SeededNoise, func: Any, n: int, **options: Any) -> Tensor:
    return noise.words(torch.Size([n]), torch.device(options.get("device") or "cpu")).argsort(stable=True)


def _recurrent(noise: SeededNoise, func: Any, *args: Any, **named: Any) -> Any:
    """`torch.lstm(input, state, parameters, has_biases, layers, dropout, train, …)`, and packed sequences likewise."""
    numbers = [value for value in args if isinstance(value, bool | int | float)]
    dropout, train = numbers[2:4]
    if train and dropout > 0:
        raise _refusal(f"dropout between the layers of '{func.__name__}'", "put nn.Dropout between layers of your own")
    return func(*args, **named)


def _rrelu(
    noise: SeededNoise, func: Any, input: Tensor, lower: float, upper: float, training: bool, **named: Any
) -> Any:
    if training:
        raise _refusal(f"'{func.__name__}' in training", "use nn.LeakyReLU, or slopes that are drawn in batch()")
    return func(input, lower, upper, training, **named)


def _refused(noise: SeededNoise, func: Any, *args: Any, **named: Any) -> Any:
    raise _refusal(f"'{func.__name__}'", "draw what it needs in batch() and pass it in the batch")


def _refusal(operation: str, remedy: str) -> TaskError:
    return TaskError(f"{calling_module()} uses {operation}, which cannot follow from the batch's seed: {remedy}")


def calling_module() -> str:
    """The innermost module whose `forward` is running, as `the model's 'encoder.1' (Block)`; `loss()` outside of all."""
    running: list[nn.Module] = []
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        own = frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_argcount else None
        if isinstance(own, nn.Module) and frame.f_code.co_name == "forward" and not hasattr(own, "loss_of_task"):
            running.append(own)
        frame = frame.f_back
    if not running:
        return "loss()"
    name = next((name for name, module in running[-1].named_modules() if module is running[0]), "")
    return f"the model's '{name}' ({type(running[0]).__name__})" if name else f"the model ({type(running[0]).__name__})"


# Python functions that call random ones, or lookups, and hide them from a mode.
COMPOSITE = frozenset({F.multi_head_attention_forward, F.gumbel_softmax, F.rrelu, F.embedding})
ANSWERS: dict[Any, Callable[..., Any]] = {
    F.dropout: _dropout,
    torch.dropout: _native_dropout,
    torch.dropout_: _native_dropout,
    F.dropout1d: _channel_dropout(1),
    F.dropout2d: _channel_dropout(None),
    F.dropout3d: _channel_dropout(3),
    torch.feature_dropout: _channel_dropout(None),
    F.alpha_dropout: _alpha_dropout,
    F.feature_alpha_dropout: _alpha_dropout,
    torch.alpha_dropout: _alpha_dropout,
    F.scaled_dot_product_attention: _attention,
    torch.rand: _make(_uniform),
    torch.randn: _make(_normal),
    torch.rand_like: _like(_uniform),
    torch.randn_like: _like(_normal),
    torch.randint: _randint,
    torch.randperm: _randperm,
    torch.bernoulli: _bernoulli,
    Tensor.bernoulli: _bernoulli,
    Tensor.uniform_: _fill(_uniform),
    Tensor.normal_: _fill(_normal),
    Tensor.exponential_: _fill(_exponential),
    Tensor.bernoulli_: _fill(_coin),
    torch.rrelu: _rrelu,
    torch.rrelu_: _rrelu,
    torch.lstm: _recurrent,
    torch.gru: _recurrent,
    torch.rnn_tanh: _recurrent,
    torch.rnn_relu: _recurrent,
    **dict.fromkeys(
        (torch.multinomial, Tensor.multinomial, torch.poisson, torch.binomial, torch.normal, torch.randint_like),
        _refused,
    ),
    **dict.fromkeys((Tensor.random_, Tensor.cauchy_, Tensor.geometric_, Tensor.log_normal_), _refused),
}


# Rows of a table, looked up in a way whose gradient repeats on a GPU.
#
# PyTorch's gradient of an embedding of up to 3,072 indices has a race on CUDA (mended in its pull request 187687): behind
# every 1,024th index a fast warp overwrites what a slow one still reads, and the rows of common words get a wrong sum. That
# needs a busy GPU and happens once in some hundred gradients there, so no check before a run finds it, and an honest peer is
# convicted of it. An index has the same rows, and a gradient that sorts first (docs/decisions/0031-what-pytorch-calls-
# deterministic.md).


# V rows of a table, E numbers of a row


def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    """`torch.embedding`, with another gradient on CUDA; the row `padding_idx` has none."""
    plainly = not weight.is_cuda or scale_grad_by_freq or sparse or indices.dtype not in (torch.int32, torch.int64)
    if plainly:
        return torch.embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)
    return by_index(weight, indices, padding_idx)


def by_index(weight_VE: Tensor, indices: Tensor, padding_idx: int) -> Tensor:
    """The same by an index; negative ones count from the end, where PyTorch's embedding stops the process."""
    rows = weight_VE[indices.reshape(-1)].view(*indices.shape, weight_VE.shape[1])
    return rows if padding_idx < 0 else torch.where((indices == padding_idx)[..., None], rows.detach(), rows)


INSTEAD: dict[Any, Callable[..., Tensor]] = {torch.embedding: embedding}


# Global generators (Python's, NumPy's, PyTorch's): noticing their use, and finding the line that uses them.


T = TypeVar("T")


def without_chance(method: str, remedy: str, run: Callable[[], T]) -> T:
    """Run it, and raise a `TaskError` that names generator and line if it uses a global generator.

    Imports do not count: some libraries draw while they are imported, and nothing of that reaches the task.
    """
    before = _states()
    with _imports_left_out():
        result = run()
    after = _states()
    for name in before:
        if before[name] != after[name]:
            raise TaskError(f"{method} uses the global generator of {name}{_place(name, run)}: {remedy}")
    return result


def disturb() -> None:
    """Advance every global generator, so that what depends on one comes out differently."""
    random.random()
    np.random.random()
    torch.rand(())


def _torch_state() -> Any:
    cards = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [state.numpy().tobytes() for state in (torch.get_rng_state(), *cards)]


def _numpy_state() -> Any:
    state = np.random.get_state(legacy=False)
    assert isinstance(state, dict)
    return state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"], state["gauss"]


_STATES: dict[str, Callable[[], Any]] = {"torch": _torch_state, "numpy.random": _numpy_state, "random": random.getstate}


def _states() -> dict[str, Any]:
    return {name: state() for name, state in _STATES.items()}


@contextmanager
def _imports_left_out() -> Iterator[None]:
    """Give generators back, after each import, the states that they had before it."""
    by_statement, by_name = builtins.__import__, importlib.import_module

    def restoring(importing: Callable[..., Any]) -> Callable[..., Any]:
        def restored(*args: Any, **named: Any) -> Any:
            before = random.getstate(), np.random.get_state(), torch.get_rng_state()
            try:
                return importing(*args, **named)
            finally:
                random.setstate(before[0])
                np.random.set_state(before[1])
                torch.set_rng_state(before[2])

        return restored

    builtins.__import__, importlib.import_module = restoring(by_statement), restoring(by_name)
    try:
        yield
    finally:
        builtins.__import__, importlib.import_module = by_statement, by_name


def _place(name: str, run: Callable[[], Any]) -> str:
    """Run it again, looking at the generator after every call, and describe the first place where it has changed."""
    state = _STATES[name]
    last = state()
    found: list[str] = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        if not found and event in ("return", "c_return") and state() != last:
            found.append(_describe(frame))

    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found[0] if found else ""


def _describe(frame: FrameType) -> str:
    """` in Block (model.py:12)`: the module whose `forward` it is, and the user's line that led there."""
    module, line = "", ""
    at: FrameType | None = frame
    while at is not None and not line:
        own = at.f_locals.get(at.f_code.co_varnames[0]) if at.f_code.co_argcount else None
        if isinstance(own, nn.Module) and at.f_code.co_name == "forward" and not module:
            module = f" in {type(own).__name__}"
        if is_users(at.f_code.co_filename):
            line = f" ({at.f_code.co_filename}:{at.f_lineno})"
        at = at.f_back
    return module + line
