"""Rows of a table, looked up in a way whose gradient repeats on a GPU.

PyTorch's gradient of an embedding of up to 3,072 indices has a race on CUDA (mended in its pull request 187687): behind every
1,024th index a fast warp overwrites what a slow one still reads, and the rows of common words get a wrong sum. That needs a busy
GPU and happens once in some hundred gradients there, so no check before a run finds it, and an honest peer is convicted of it.
An index has the same rows, and a gradient that sorts first (docs/decisions/0031-what-pytorch-calls-deterministic.md).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# V rows of a table, E numbers of a row


def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    """`torch.embedding`, with another gradient on CUDA; the row `padding_idx` has none."""
    plainly = not weight.is_cuda or scale_grad_by_freq or sparse or indices.dtype not in (torch.int32, torch.int64)
    if plainly:
        return torch.embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)
    return by_index(weight, indices, padding_idx)


def by_index(weight_VE: Tensor, indices: Tensor, padding_idx: int) -> Tensor:
    """The same by an index; negative ones count from the end, where PyTorch's embedding stops the process."""
    rows = weight_VE[indices.reshape(-1)].view(*indices.shape, weight_VE.shape[1])
    return rows if padding_idx < 0 else torch.where((indices == padding_idx)[..., None], rows.detach(), rows)


INSTEAD: dict[Any, Callable[..., Tensor]] = {torch.embedding: embedding}
COMPOSITE = frozenset({F.embedding})  # call one of these
