"""Threads that PyTorch computes with: bits may depend on their number, so a run has one by default."""

import torch

from troth.errors import OperatorError


class ThreadsError(OperatorError):
    """A number of threads that makes no sense."""


def use_threads(threads: int) -> None:
    """Compute with so many threads from now on, everywhere in this process; 0 leaves it to PyTorch."""
    if threads < 0:
        raise ThreadsError(f"`threads` must be at least 0, got {threads}")
    if threads:
        torch.set_num_threads(threads)
