"""Gradients of micro-batches, one at a time: memory for one is enough."""

from collections.abc import Callable

import torch
from torch import Tensor

from troth.training.layout import Layout
from troth.training.task import Batch


def mean_of(
    compute: Callable[[Batch], tuple[dict[str, Tensor], Tensor]], batch: Batch, count: int, layout: Layout, leading: int
) -> tuple[Tensor, Tensor]:
    """Mean loss and mean flat gradient over `count` micro-batches, summed in order."""
    losses: list[Tensor] = []
    total: Tensor | None = None
    for k in range(count):
        gradients, loss = compute({name: tensor.select(leading, k) for name, tensor in batch.items()})
        flat = layout.flatten(gradients, leading)
        total = flat if total is None else total.add_(flat)
        losses.append(loss.detach())
    assert total is not None
    return torch.stack(losses).mean(dim=0), total.mul_(1 / count)
