"""A model of so many parameters and a gradient that costs next to nothing: for measuring everything else."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from troth.crypto import Stream
from troth.training.task import Batch, Model, Task


@dataclass(frozen=True)
class Flat(Task):
    """Σ_j slope·x_j with a slope from the seed: nothing to learn, and nothing to compute"""

    dimension: int = 10_000_000

    one_by_one = True
    optimizer = "sgd"
    rate = 0.01
    tau = 1.0

    def model(self) -> nn.Module:
        return _Point(self.dimension)

    def initialise(self, model: nn.Module, draw: Stream) -> None:
        pass  # all ones

    def batch(self, draw: Stream) -> Batch:
        return {"slope": torch.from_numpy(draw.uniform(1)).float()}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        loss: Tensor = model().sum() * batch["slope"][0]
        return loss

    def evaluate(self, model: Model) -> dict[str, float]:
        return {"loss": 0.0}


class _Point(nn.Module):
    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.ones(dimension))  # not zeros, whose memory is not there before it is written to

    def forward(self) -> Tensor:
        return self.x
