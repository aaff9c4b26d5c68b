"""Whether a vector goes through compiled loops."""

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LARGE = (
    1 << 18
)  # numbers; with fewer NumPy takes a millisecond or two, and numba half a second to load, seconds the first time


def compiled(count: int) -> bool:
    """Tell whether so many numbers are enough for compiled loops, and there are such."""
    return count >= LARGE and _numba()


def fits(*vectors: NDArray[Any] | Tensor) -> bool:
    """Tell whether all vectors, or rows side by side, are float32 in this machine's memory and order."""
    return all(
        vector.dtype == torch.float32 and vector.device.type == "cpu"
        if isinstance(vector, Tensor)
        else vector.dtype == np.float32
        for vector in vectors
    )


@cache
def _numba() -> bool:
    try:
        import_module("troth.kernels.loops.jit")
    except ImportError:
        return False
    return True
