"""Compile everything before a run begins: else the first step of a machine would wait for it, and others for the machine."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

import numpy as np
import torch

from troth.kernels.choice import compiled
from troth.kernels.clipping import combine, gram
from troth.kernels.differences import differences, squared_lengths
from troth.kernels.judging import pulls
from troth.kernels.numbers import exact_norm, flush, odd_numbers
from troth.kernels.updates import adamw, sgd


def prepare(count: int) -> None:
    """Load all loops, if vectors of so many numbers go through them. Some seconds once on a machine, half of one afterwards."""
    if compiled(count):
        with _one_at_a_time():
            _load_all()


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Sixteen peers that start together on a machine: one compiles, and the others find what it has written."""
    with ExitStack() as stack:
        with suppress(
            OSError, ImportError
        ):  # nothing can be written, or there are no such locks: each compiles for itself
            import fcntl

            lock = stack.enter_context(open(Path(__file__).parent / "loops/__pycache__/preparing.lock", "a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@cache
def _load_all() -> None:
    row_D = np.ones(1, np.float32)
    odd_numbers(row_D)
    flush(row_D)
    exact_norm(row_D, 1, 1)
    squared_lengths([row_D], (0, 1))
    differences([row_D], row_D, (0, 1), lambda start, stop: np.zeros((stop - start, 2), np.uint8))
    gram([row_D], row_D)
    combine([row_D], np.ones(1), row_D, 0.0)
    pulls([row_D], row_D, 1.0)
    vector_D = torch.ones(1)
    sgd(vector_D, vector_D, vector_D, 1.0, 0.9, 0.0, True, (1, 1))
    floors = np.ones(1, np.int64), np.ones(1, np.float32)
    adamw(vector_D, vector_D, vector_D, vector_D, (0.5,) * 9, floors, (1, 1))
