"""A module's own initialisation, drawn from a stream of ours: the same bits on every machine.

PyTorch's generators promise no such thing. While the module is built, every operation that draws at random is answered
from the stream instead, whoever calls it: `reset_parameters` of any layer, `nn.init`, Hugging Face's `_init_weights`, or
`nn.Parameter(torch.randn(…))`. Nothing knows the names of layers.

Other operations run as they are, and their results are followed: where one whose last bits differ between machines (a
sum, a cosine) reaches a parameter, that parameter would be different for every peer, and is an error.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from troth.crypto import Stream
from troth.training.task import TaskError

# Functions that initialisations use, with the same bits on every machine: float64 sums, products, quotients and roots alone.
#
# Every step is one NumPy operation on float64, which IEEE 754 rounds correctly; libraries' own `log` and `erfinv` differ in
# their last bits between machines. Precise to about 10⁻⁷ or better, which is enough for numbers that chance draws anyway.


Numbers = NDArray[np.float64]

_LN2 = 0.6931471805599453


def log(x: Numbers) -> Numbers:
    """`e·ln 2 + 2·artanh((m−1)/(m+1))` for x = m·2ᵉ with m from √½ to √2; negative numbers give NaN, zero −∞."""
    mantissa, exponent = np.frexp(np.where(x > 0, x, 1.0))
    low = mantissa < 0.7071067811865476
    mantissa, exponent = np.where(low, mantissa * 2, mantissa), np.where(low, exponent - 1, exponent)
    ratio = (mantissa - 1) / (mantissa + 1)
    series = _polynomial([1 / k for k in range(23, 0, -2)], ratio * ratio)
    result = exponent * _LN2 + 2 * ratio * series
    return np.asarray(np.where(x > 0, result, np.where(x == 0, -np.inf, np.nan)))


def exp(x: Numbers) -> Numbers:
    """`2ᵏ·eʳ` with |r| ≤ ½·ln 2, by its Taylor series."""
    power = np.rint(np.clip(x, -1000, 1000) / _LN2)
    rest = np.clip(x, -1000, 1000) - power * _LN2
    factorials = np.cumprod(np.arange(1.0, 16.0))
    series = _polynomial([*(1 / f for f in factorials[::-1]), 1.0], rest)
    return np.asarray(np.ldexp(series, power.astype(np.int64)))


def erfinv(x: Numbers) -> Numbers:
    """Giles' approximation (Approximating the erfinv function, 2010), with relative errors below 10⁻⁶ for every float32."""
    with np.errstate(all="ignore"):  # −1 and 1 have infinite values, and nothing beyond them any
        w = -log((1 - x) * (1 + x))
        near, far = _polynomial(_GILES_NEAR, w - 2.5), _polynomial(_GILES_FAR, np.sqrt(w) - 3)
        return np.asarray(np.where(np.abs(x) == 1, np.copysign(np.inf, x), np.where(w < 5, near, far) * x))


def qr(matrix: Numbers) -> tuple[Numbers, Numbers]:
    """Orthonormal columns and a triangle with positive diagonal, by Gram and Schmidt's modified method.

    Sums run in one fixed order (`accumulate`): reductions by vector instructions do not.
    """
    columns = matrix.astype(np.float64).copy()
    rows, count = columns.shape[0], min(columns.shape)
    basis, triangle = np.zeros((rows, count)), np.zeros((count, columns.shape[1]))
    for j in range(count):
        length = np.sqrt(_sum_rows(columns[:, j : j + 1] ** 2))[0]
        basis[:, j] = columns[:, j] / length if length > 0 else 0.0
        triangle[j, j:] = _sum_rows(basis[:, j : j + 1] * columns[:, j:])
        columns[:, j:] -= basis[:, j : j + 1] * triangle[j : j + 1, j:]
    return basis, triangle


def _sum_rows(terms: Numbers) -> Numbers:
    return np.asarray(np.add.accumulate(terms, axis=0)[-1])


def _polynomial(coefficients: Sequence[float], x: Numbers) -> Numbers:
    """Horner's scheme, the highest power first."""
    total = np.zeros_like(x)
    for coefficient in coefficients:
        total = total * x + coefficient
    return total


_GILES_NEAR = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_GILES_FAR = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)


_CHUNK = 1 << 18  # numbers drawn at once; a normal one takes 48 bytes on the way
_WAY_OUT = "set it in Task.initialise with numbers from its stream, or begin the run with --from a file of weights"


class FirstValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, random operations draw from the stream. `check` afterwards, before the values are used."""

    def __init__(self, draw: Stream) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draw = draw
        self._inexact: dict[int, tuple[Any, str]] = {}  # by address: the storage, kept alive, and the operation

    def check(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Raise an error for the first parameter with values that other machines would not get."""
        for name, parameter in named:
            if operation := self._cause([parameter]):
                raise TaskError(
                    f"the first values of parameter '{name}' come from {operation}, whose last bits differ between "
                    f"machines: {_WAY_OUT}"
                )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = str(func.overloadpacket.__name__)
        if torch.Tag.nondeterministic_seeded in func.tags:
            kwargs.pop("generator", None)
            return self._random(func, name, args, kwargs)
        if (replaced := _portable(name, args)) is not None:
            return self._marked(name, replaced, self._cause(args))
        # The old values of a tensor that is overwritten do not matter.
        cause = self._cause(tree_leaves((args[1:] if name in ("copy_", "fill_", "zero_") else args, kwargs)))
        result = func(*args, **kwargs)
        if not cause and not _exact(name, kwargs) and any(map(_is_float, tree_leaves(result))):
            cause = f"'{name}'"
        return self._marked(name, result, cause)

    def _cause(self, values: Iterable[Any]) -> str:
        found = (self._inexact.get(value.untyped_storage()._cdata) for value in values if isinstance(value, Tensor))
        return next((entry[1] for entry in found if entry), "")

    def _marked(self, name: str, result: Any, cause: str) -> Any:
        for tensor in tree_leaves(result):
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            if cause:
                self._inexact[storage._cdata] = (storage, cause)
            elif name in ("copy_", "fill_", "zero_"):
                self._overwritten(tensor)
        return result

    def _overwritten(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if tensor.numel() * tensor.element_size() == storage.nbytes():
            self._inexact.pop(storage._cdata, None)

    def _random(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        if name in _FACTORIES:
            size = [args[-1]] if name == "randperm" else args[-1]
            out = torch.empty(size, **{"dtype": torch.int64, **kwargs} if name in _INTEGERS else kwargs)
        elif name in ("rand_like", "randn_like", "randint_like", "bernoulli"):
            out = torch.empty_like(args[0], **{k: v for k, v in kwargs.items() if k != "p"})
        elif name.endswith("_") and name in _IN_PLACE:
            out = args[0]
        elif name == "normal":
            like = next((value for value in args if isinstance(value, Tensor)), None)
            out = torch.empty(args[2], **kwargs) if like is None else torch.empty_like(like)
        else:
            raise TaskError(
                f"model() draws with '{name}', which cannot be drawn from the run's stream: use uniform or normal "
                f"numbers, or {_WAY_OUT}"
            )
        if out.device.type != "meta":
            with torch.no_grad():
                self._fill(out, _formula(name, func, args, kwargs))
        self._overwritten(out)
        return out

    def _fill(self, out: Tensor, formula: "Formula") -> None:
        values = formula(self._draw, out.numel())
        out.copy_(torch.from_numpy(values).view(out.shape))


Formula = Callable[[Stream, int], NDArray[Any]]
_FACTORIES, _INTEGERS = ("rand", "randn", "randint", "randperm"), ("randint", "randperm")
_IN_PLACE = ("uniform_", "normal_", "exponential_", "random_", "bernoulli_")


def _formula(name: str, func: Any, args: Any, kwargs: dict[str, Any]) -> Formula:
    """Numbers of the distribution that an operation's name and arguments ask for, as float64 or integers."""
    given = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)} | kwargs
    match name:
        case "rand" | "rand_like":
            return lambda draw, count: draw.uniform(count)
        case "uniform_":
            low, high = float(given.get("from", 0.0)), float(given.get("to", 1.0))
            if low == -high:
                return lambda draw, count: (2 * draw.uniform(count) - 1) * high
            return lambda draw, count: low + draw.uniform(count) * (high - low)
        case "randn" | "randn_like" | "normal_" | "normal":
            mean, std = _numbers(given.get("mean", 0.0)), _numbers(given.get("std", 1.0))
            return lambda draw, count: _normal(draw, count) * std + mean
        case "exponential_":
            rate = float(given.get("lambd", 1.0))
            return lambda draw, count: -log(1 - draw.uniform(count)) / rate
        case "bernoulli" | "bernoulli_":
            share = _numbers(given.get("p", 0.5 if name == "bernoulli_" else given["self"]))
            return lambda draw, count: (draw.uniform(count) < share).astype(np.float64)
        case "randperm":
            return lambda draw, count: draw.permutation(count)
        case _:  # random_, randint, randint_like
            low = int(given.get("from", given.get("low", 0)) or 0)
            high = int(given.get("to", given.get("high", 1 << 24)) or 1 << 24)
            return lambda draw, count: low + draw.integers(high - low, count)


def _normal(draw: Stream, count: int) -> NDArray[np.float64]:
    """In chunks, which changes no bit: a hundred million at once would take gigabytes on the way."""
    out = np.empty(count)
    for start in range(0, count, _CHUNK):
        piece = out[start : start + _CHUNK]
        piece[:] = draw.normal(len(piece))
    return out


def _numbers(value: Any) -> Any:
    return value.detach().double().numpy().reshape(-1) if isinstance(value, Tensor) else float(value)


def _portable(name: str, args: Any) -> Any:
    """The result of an operation that has a portable version; None for every other one."""
    if not args or not isinstance(args[0], Tensor) or not _is_float(args[0]) or args[0].device.type != "cpu":
        return None
    tensor: Tensor = args[0]
    if name == "linalg_qr" and tensor.ndim == 2 and len(args) == 1:
        return tuple(torch.from_numpy(part).to(tensor.dtype) for part in qr(tensor.double().numpy()))
    if (function := _PORTABLE.get(name.removesuffix("_"))) is None:
        return None
    result = torch.from_numpy(np.asarray(function(tensor.detach().double().numpy()))).to(tensor.dtype)
    return tensor.copy_(result) if name.endswith("_") else result


_PORTABLE: dict[str, Callable[[Numbers], Numbers]] = {"sqrt": np.sqrt, "log": log, "exp": exp, "erfinv": erfinv}


def _exact(name: str, kwargs: dict[str, Any]) -> bool:
    """Whether every machine gets the same bits out of the same bits."""
    base = name.removesuffix("_")
    if base in ("add", "sub", "rsub") and kwargs.get("alpha", 1) != 1:
        return False  # one rounding or two, as the machine likes
    return base.removesuffix("_copy") in _EXACT or base.startswith(
        ("new_", "empty", "view", "as_strided", "bitwise_", "logical_")
    )


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


# Correctly rounded arithmetic, comparisons, selection, and operations that only move or make numbers.
_EXACT_NAMES = """
    add sub rsub mul div neg abs sign clamp clamp_min clamp_max maximum minimum floor ceil round trunc
    eq ne lt le gt ge where masked_fill isnan isinf isfinite max min amax amin sort argsort topk argmax argmin
    zeros ones full zeros_like ones_like full_like scalar_tensor eye arange zero fill copy clone _to lift_fresh
    detach alias t transpose permute movedim reshape _reshape_alias _unsafe_view expand unsqueeze squeeze slice select
    unbind split split_with_sizes chunk cat stack repeat repeat_interleave flip roll diagonal diag diag_embed tril triu
    index index_select index_put _index_put_impl index_copy index_fill gather scatter masked_select masked_scatter
    slice_scatter select_scatter set resize narrow unfold constant_pad_nd pin_memory is_pinned tril_indices triu_indices
"""
_EXACT = frozenset(_EXACT_NAMES.split())
