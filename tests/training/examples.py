"""Small tasks that tests build on."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from troth.crypto import Stream
from troth.training import TASKS, Batch, Model, Task

WITHOUT_DATA = [name for name, kind in TASKS.items() if "data" not in kind.__dataclass_fields__]  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Lines(Task):
    """fit a plane in three dimensions"""

    def model(self) -> nn.Module:
        return nn.Linear(3, 1)

    def batch(self, draw: Stream) -> Batch:
        x = torch.from_numpy(draw.uniform(12)).float().view(4, 3)
        return {"x": x, "y": x.sum(dim=1, keepdim=True) + 1}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return F.mse_loss(model(batch["x"]), batch["y"])
