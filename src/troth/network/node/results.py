"""The model for its users: a complete `state_dict` in a safetensors file, and the line of Python that loads it."""

from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from troth.files import write_bytes
from troth.training import Problem


def write_model(path: Path, problem: Problem, flat_D: Tensor) -> None:
    """Write the model so that it loads strictly into a new `task.model()`."""
    write_bytes(path, save(problem.state_dict(flat_D)))


def how_to_load(path: Path) -> str:
    """One line of Python, in which `model` is what the task's `model()` returns."""
    return f'model.load_state_dict(safetensors.torch.load_file("{path}"))'
