"""Answers to PyTorch's random functions, drawn from a `Noise`: one function per kind, and the table that assigns them.

An answer gets the noise, the function that was called, and its arguments.
"""

import sys
from collections.abc import Callable
from math import log, pi, sqrt
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from troth.training.errors import TaskError

if TYPE_CHECKING:
    from troth.training.randomness.noise import Noise


def _keep(noise: "Noise", tensor: Tensor, p: float, shape: torch.Size | None = None) -> Tensor:
    """1/(1 − p) where an element stays, 0 where it is dropped."""
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if p == 1:
        return torch.zeros_like(tensor)
    words = noise.words(tensor.shape if shape is None else shape, tensor.device)
    return (words >= int(p * (1 << 32))).to(tensor.dtype) / (1 - p)


def _dropped(noise: "Noise", tensor: Tensor, p: float, inplace: bool, shape: torch.Size | None = None) -> Tensor:
    keep = _keep(noise, tensor, p, shape)
    return tensor.mul_(keep) if inplace else tensor * keep


def _dropout(
    noise: "Noise", func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    return _dropped(noise, input, p, inplace) if training and p > 0 else input


def _native_dropout(noise: "Noise", func: Any, input: Tensor, p: float, train: bool) -> Tensor:
    return _dropped(noise, input, p, func.__name__.endswith("_")) if train and p > 0 else input


def _channel_dropout(dimensions: int | None) -> Callable[..., Tensor]:
    """`dropout1d` to `dropout3d`: whole channels. Inputs without a batch have one dimension less than others."""

    def dropout(
        noise: "Noise", func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return input
        leading = 1 if dimensions is not None and input.dim() == dimensions + 1 else 2
        shape = torch.Size([*input.shape[:leading], *[1] * (input.dim() - leading)])
        return _dropped(noise, input, p, inplace, shape)

    return dropout


def _alpha_dropout(
    noise: "Noise", func: Any, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
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
    noise: "Noise",
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

    def fill(noise: "Noise", func: Any, tensor: Tensor, *args: Any, generator: Any = None, **named: Any) -> Tensor:
        named = {{"from": "low", "to": "high"}.get(name, name): value for name, value in named.items()}
        return tensor.copy_(formula(noise, tensor.shape, tensor.device, *args, **named))

    return fill


def _like(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Draws of a tensor's shape: `torch.randn_like(tensor)`."""

    def like(noise: "Noise", func: Any, tensor: Tensor, *args: Any, **options: Any) -> Tensor:
        device, dtype = options.get("device") or tensor.device, options.get("dtype") or tensor.dtype
        return formula(noise, tensor.shape, torch.device(device), *args).to(dtype)

    return like


def _make(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Draws of a given shape: `torch.randn(2, 3)`."""

    def make(noise: "Noise", func: Any, *size: Any, **options: Any) -> Tensor:
        size = tuple(options.get("size", size))
        shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
        drawn = formula(noise, shape, torch.device(options.get("device") or "cpu"))
        return drawn.to(options.get("dtype") or torch.get_default_dtype())

    return make


def _uniform(noise: "Noise", shape: torch.Size, device: torch.device, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + noise.uniform(shape, device) * (high - low)


def _normal(noise: "Noise", shape: torch.Size, device: torch.device, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Box and Muller's method; its last bits may differ between machines, like those of any loss."""
    radius = (-2 * (1 - noise.uniform(shape, device)).log()).sqrt()
    return mean + std * (radius * (2 * pi * noise.uniform(shape, device)).cos())


def _exponential(noise: "Noise", shape: torch.Size, device: torch.device, lambd: float = 1.0) -> Tensor:
    return -(1 - noise.uniform(shape, device)).log().clamp(max=log(1 - 2.0**-25)) / lambd


def _coin(noise: "Noise", shape: torch.Size, device: torch.device, p: Any = 0.5) -> Tensor:
    heads: Tensor = noise.uniform(shape, device) < p
    return heads.float()


def _bernoulli(noise: "Noise", func: Any, tensor: Tensor, p: float | None = None, **options: Any) -> Tensor:
    return _coin(noise, tensor.shape, tensor.device, tensor if p is None else p).to(tensor.dtype)


def _randint(noise: "Noise", func: Any, *args: Any, **options: Any) -> Tensor:
    *bounds, size = args if "size" not in options else (*args, options["size"])
    low, high = bounds if len(bounds) == 2 else (0, bounds[0])
    words = noise.words(torch.Size(size), torch.device(options.get("device") or "cpu"))
    numbers: Tensor = low + ((words * (high - low)) >> 32)
    return numbers.to(options.get("dtype") or torch.int64)


def _randperm(noise: "Noise", func: Any, n: int, **options: Any) -> Tensor:
    return noise.words(torch.Size([n]), torch.device(options.get("device") or "cpu")).argsort(stable=True)


def _recurrent(noise: "Noise", func: Any, *args: Any, **named: Any) -> Any:
    """`torch.lstm(input, state, parameters, has_biases, layers, dropout, train, …)`, and packed sequences likewise."""
    numbers = [value for value in args if isinstance(value, bool | int | float)]
    dropout, train = numbers[2:4]
    if train and dropout > 0:
        raise _refusal(f"dropout between the layers of '{func.__name__}'", "put nn.Dropout between layers of your own")
    return func(*args, **named)


def _rrelu(noise: "Noise", func: Any, input: Tensor, lower: float, upper: float, training: bool, **named: Any) -> Any:
    if training:
        raise _refusal(f"'{func.__name__}' in training", "use nn.LeakyReLU, or slopes that are drawn in batch()")
    return func(input, lower, upper, training, **named)


def _refused(noise: "Noise", func: Any, *args: Any, **named: Any) -> Any:
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


# Python functions that call random ones and hide them from a mode.
COMPOSITE = frozenset({F.multi_head_attention_forward, F.gumbel_softmax, F.rrelu})
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
