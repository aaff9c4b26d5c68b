"""First parameters from a seed, the same bits on every machine (PyTorch's own generators do not promise that)."""

import math

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from troth.crypto import Stream
from troth.training.errors import TaskError

_ONES_AND_ZEROS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)  # their constructors already set constants


def initialise_uniform(model: nn.Module, draw: Stream) -> None:
    """Draw from PyTorch's default distributions: U(±1/√fan_in) for linear and convolutional layers, N(0, 1) for embeddings.

    A module with parameters of another kind needs a rule that only its author knows, so it is an error, not a guess.
    """
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if not own or isinstance(module, _ONES_AND_ZEROS):
            continue
        if isinstance(module, nn.Linear | _ConvNd):
            bound = 1 / math.sqrt(module.weight[0].numel())
            for parameter in own:
                _fill(parameter, (2 * draw.uniform(parameter.numel()) - 1) * bound)
        elif isinstance(module, nn.Embedding):
            _fill(module.weight, draw.normal(module.weight.numel()))
        else:
            raise TaskError(
                f"no default initialisation for '{name}' ({type(module).__name__}): override Task.initialise and "
                "fill its parameters from the stream"
            )


def _fill(parameter: torch.Tensor, values: object) -> None:
    with torch.no_grad():
        parameter.copy_(torch.as_tensor(values).view_as(parameter))
