"""Weights between a flat vector and the files of other tools: complete state dicts, and back."""

from collections import defaultdict
from collections.abc import Mapping
from errno import EIO
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from troth.files import write_by
from troth.training.errors import TaskError
from troth.training.layout import Layout

# D coordinates

_SHOWN = 5  # differences named in an error


def write_model(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write a complete state dict, so that it loads strictly into a new `task.model()`."""
    write_by(path, lambda partial: write_tensors(state, partial))


def write_tensors(named: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors on the host to a file, one after the other: none is copied. Raises OSError if that fails."""
    try:
        save_file(dict(named), path)
    except SafetensorError as error:  # the library wraps the system's errors
        raise OSError(EIO, str(error)) from error


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


def _statistics(module: nn.Module) -> list[str]:
    return [
        f"{name}.{buffer}" if name else buffer
        for name, norm in module.named_modules()
        if isinstance(norm, _BatchNorm)
        for buffer, _ in norm.named_buffers()
    ]
