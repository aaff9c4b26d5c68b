"""Weights between a flat vector and the files of other tools: complete state dicts, and back."""

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from errno import EIO
from io import FileIO
from itertools import accumulate
from math import inf, prod
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from troth.files import read_into, write_by
from troth.training.task import TaskError

# D coordinates

# Parameters as one flat vector, and back as views, without copies.


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a module's trained parameters, in the module's own order; tied ones by their first name."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        return cls(tuple(name for name, _ in named), tuple(tuple(p.shape) for _, p in named))

    @property
    def size(self) -> int:
        return sum(prod(shape) for shape in self.shapes)

    @property
    def slices(self) -> dict[str, slice]:
        """Where each parameter stands in the vector: `rows_PD[:, layout.slices["0.weight"]]` is that layer in every row."""
        ends = list(accumulate(map(prod, self.shapes)))
        return {name: slice(end - prod(s), end) for name, s, end in zip(self.names, self.shapes, ends, strict=True)}

    def views(self, flat_D: Tensor) -> dict[str, Tensor]:
        """Every parameter as a view into the vector: writing to one writes to the other."""
        pieces = torch.split(flat_D, [prod(shape) for shape in self.shapes])
        return {name: piece.view(shape) for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)}

    def flatten(self, tensors: dict[str, Tensor], leading: int = 0) -> Tensor:
        """One vector (behind `leading` batch dimensions) out of named tensors; the one copy there is."""
        return torch.cat([tensors[name].flatten(start_dim=leading) for name in self.names], dim=leading)

    def moved(self, tensors: dict[str, Tensor]) -> Tensor:
        """What `flatten` gives. Takes the tensors out of the dictionary one by one: a gradient need not be there twice."""
        if len(self.names) == 1:
            return tensors.pop(self.names[0]).detach().contiguous().flatten()
        flat_D = tensors[self.names[0]].new_empty(self.size)
        for name, view in self.views(flat_D).items():
            view.copy_(tensors.pop(name).detach())
        return flat_D


_SHARE, _LAST_BITS = 1e-5, 2.0**-22  # by which tensors may differ between machines
_SHOWN = 5  # differences named in an error
_TRAINED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # what trained numbers may be kept as
_MOST_HEADER = 1 << 20  # bytes of names and shapes of vectors


def write_model(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write a complete state dict, so that it loads strictly into a new `task.model()`."""
    write_by(path, lambda partial: write_tensors(state, partial))


def write_tensors(named: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors on the host to a file, one after the other: none is copied. Raises OSError if that fails."""
    try:
        save_file(dict(named), path)
    except SafetensorError as error:  # the library wraps the system's errors
        raise OSError(EIO, str(error)) from error


class _Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A vector in the header of a file of tensors."""

    dtype: Literal["F32", "F64"]
    shape: tuple[Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]]
    data_offsets: tuple[int, int]  # from the end of the header on

    def empty(self) -> Tensor:
        return torch.empty(self.shape, dtype=torch.float32 if self.dtype == "F32" else torch.float64)

    @property
    def length(self) -> int:
        """In bytes."""
        return self.shape[0] * (4 if self.dtype == "F32" else 8)


def read_vectors(path: Path, most: int) -> dict[str, Tensor]:
    """Vectors of a file of at most so many bytes that `write_tensors` made, copied into memory.

    `safetensors.torch.load_file` gives the same numbers, but leaves them in the file and maps it: there they change if somebody
    writes into the file after their digest was checked, and the process dies where somebody cut it. Mapping would save no memory
    here: computing the digest reads every page. Vectors that are seldom read rest in files without a name (`troth.resting`).

    Raises OSError if the file cannot be read, and ValueError if it is no such file.
    """
    with FileIO(path) as file:
        total = os.fstat(file.fileno()).st_size
        if total > most:
            raise ValueError(f"{total:,} bytes are more than such a file has")
        places = _header(file, total)
        end = 0
        for place in places.values():
            begin, end = end, end + place.length
            if place.data_offsets != (begin, end):
                raise ValueError("its vectors do not follow one another")
        if file.tell() + end != total:
            raise ValueError("it is cut, or too long")
        named = {name: place.empty() for name, place in places.items()}
        if not all(read_into(file, vector_D.numpy().data.cast("B")) for vector_D in named.values() if len(vector_D)):
            raise ValueError("it was cut while it was read")
    return named


def _header(file: FileIO, total: int) -> dict[str, _Place]:
    """The header that a file of so many bytes begins with: its vectors, in the order in which they lie there."""
    prefix = bytearray(8)
    if not read_into(file, memoryview(prefix)):
        raise ValueError("it has no header")
    length = int.from_bytes(prefix, "little")
    if length > min(total, _MOST_HEADER):
        raise ValueError("its header is cut, or too long")
    header = bytearray(length)
    if not read_into(file, memoryview(header)):
        raise ValueError("its header is cut, or too long")
    try:
        places = msgspec.json.decode(header, type=dict[str, _Place])
    except msgspec.MsgspecError as error:
        raise ValueError(f"its header is damaged, or of something else than vectors: {error}") from error
    return dict(sorted(places.items(), key=lambda one: one[1].data_offsets))


def how_to_load(path: Path) -> str:
    """One line of Python, in which `model` is what the task's `model()` returns."""
    return f'model.load_state_dict(safetensors.torch.load_file("{path}"))'


def complete_state(module: nn.Module) -> dict[str, Tensor]:
    """Every tensor of a module under each of its names, on the CPU and none sharing memory with another."""
    state = module.state_dict().items()
    return {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in state}


def flat_of(module: nn.Module, layout: Layout, named: Mapping[str, Tensor]) -> Tensor:
    """The trained parameters out of a complete state dict, or out of a file that holds just them.

    Raises an error that names the tensors which do not fit, frozen ones with other values among them: everyone computes
    with the frozen values that `model()` makes.
    """
    aliases = _aliases(module)
    trained = {name: [other for other in aliases[name] if other in named] for name in layout.names}
    faults = [
        fault
        for name, shape in zip(layout.names, layout.shapes, strict=True)
        if (fault := _fault(name, shape, [named[other] for other in trained[name]]))
    ]
    used = {name for names in trained.values() for name in names}
    faults += _differences(module, {name: tensor for name, tensor in named.items() if name not in used})
    if faults:
        more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise TaskError(f"these weights do not fit the model: {'; '.join(faults[:_SHOWN])}{more}")
    return layout.flatten({name: named[names[0]].float() for name, names in trained.items()})


def _aliases(module: nn.Module) -> dict[str, list[str]]:
    """All names of each parameter, by its first: tied weights have several."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return {group[0]: group for group in names.values()}


def _fault(name: str, shape: tuple[int, ...], given: list[Tensor]) -> str:
    if not given:
        return f"'{name}' is missing"
    if tuple(given[0].shape) != shape:
        return f"'{name}' has the shape {tuple(given[0].shape)} instead of {shape}"
    # With some number formats nothing can be computed.
    if odd := next((one.dtype for one in given if one.dtype not in _TRAINED), None):
        return f"'{name}' holds numbers of the type {odd}"
    if not bool(torch.isfinite(given[0]).all()):
        return f"'{name}' holds numbers that are not finite"
    if any(not torch.equal(given[0], other) for other in given[1:]):
        return f"'{name}' has several names in the model and different values under them"
    return ""


def _differences(module: nn.Module, others: Mapping[str, Tensor]) -> list[str]:
    """Tensors that are not trained and differ from the model's; statistics of BatchNorm are computed anew anyway."""
    here, computed = module.state_dict(), set(_statistics(module))
    faults = []
    for name, tensor in others.items():
        if name not in here:
            faults.append(f"'{name}' is not in the model")
        elif name not in computed and not _close(tensor, here[name]):
            faults.append(f"'{name}' is not trained and has other values than model() gives it: load them there")
    return faults


def _close(left: Tensor, right: Tensor) -> bool:
    """Equal but for the last bits, in which a table of cosines differs between machines."""
    return left.shape == right.shape and torch.allclose(left.double(), right.cpu().double(), rtol=1e-5, atol=1e-7)


def same_tensors(module: nn.Module, shown: Mapping[str, Tensor]) -> dict[str, bool]:
    """Whether each of the module's tensors is shown as it is, but for what computing it on another machine changes (SPEC E7).

    Statistics of BatchNorm are judged by what they do: a mean that is off by 10⁻⁵ of `√(σ² + ε)`, or a variance by 10⁻⁵ of
    `σ² + ε`, moves the layer's output as an input does that is off by as much of its deviation. The rest is a constant.
    """
    state, norms = module.state_dict(), _norms(module)
    return {name: _same(shown[name], tensor, *_allowed(name, state, norms)) for name, tensor in state.items()}


def _allowed(name: str, state: Mapping[str, Tensor], norms: Mapping[str, _BatchNorm]) -> tuple[Tensor, float]:
    """How far a number may be off, and the least that it may be."""
    here = state[name].double()
    layer, dot, kind = name.rpartition(".")
    if layer in norms and kind in ("running_mean", "running_var"):
        spread = state[f"{layer}{dot}running_var"].double() + norms[layer].eps
        if kind == "running_var":
            return _SHARE * spread, 0.0  # a negative one, within ε of 0, makes outputs that are not finite
        return _SHARE * spread.sqrt() + _LAST_BITS * here.abs(), -inf
    return _SHARE * here.abs(), -inf


def _same(shown: Tensor, expected: Tensor, allowed: Tensor, least: float) -> bool:
    if (shown.dtype, shown.shape) != (expected.dtype, expected.shape):
        return False
    if not shown.is_floating_point():
        return torch.equal(shown, expected)
    near = ((shown.double() - expected.double()).abs() <= allowed) & (shown >= least)
    return bool((near | (shown == expected) | (shown.isnan() & expected.isnan())).all())


def _statistics(module: nn.Module) -> list[str]:
    return [
        f"{name}.{buffer}" if name else buffer
        for name, norm in _norms(module).items()
        for buffer, _ in norm.named_buffers()
    ]


def _norms(module: nn.Module) -> dict[str, _BatchNorm]:
    return {name: norm for name, norm in module.named_modules(remove_duplicate=False) if isinstance(norm, _BatchNorm)}
