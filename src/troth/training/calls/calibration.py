"""BatchNorm's running statistics, computed anew from batches of a public seed: everyone evaluates the same function."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from troth.crypto import Seed, derive
from troth.training.task import Batch, Task
from troth.training.user_code import calling

_SEED = derive(0, "batchnorm calibration")
_BATCHES = 32


def norms_of(module: nn.Module) -> list[_BatchNorm]:
    """Layers with running statistics."""
    return [m for m in module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]


def calibrate(task: Task, module: nn.Module, batch_of: Callable[[Seed], Batch]) -> None:
    """Compute the statistics: the plain average over the batches."""
    norms = norms_of(module)
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain average over the calibration batches
        norm.train()
    with fixed_generator(), torch.no_grad(), calling("loss"):
        for k in range(_BATCHES if norms else 0):
            task.loss(module, batch_of(derive(_SEED, k)))
    module.eval()


@contextmanager
def fixed_generator() -> Iterator[None]:
    """Evaluation that draws with PyTorch's own generator gives the same each time, and changes it for nobody else."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
