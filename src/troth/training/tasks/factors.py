"""A product of two vectors, one of them zero at first: gradients with parts of nothing but zeros, and sparse ones."""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from troth.crypto import Stream, stream
from troth.training.task import Batch, Model, Task


@dataclass(frozen=True)
class Factors(Task):
    """½·Σ (u_j·w_j − x*_j)² with u zero and w one at first; each batch sees a share of the coordinates"""

    dimension: int = 1000  # of u and w together, so it is even
    seen: float = 0.5  # the share of coordinates that a batch touches
    noise: float = 0.1

    rate = 0.1
    tau = 0.1

    def __post_init__(self) -> None:
        if self.dimension < 2 or self.dimension % 2 or not 0 < self.seen <= 1 or self.noise < 0:
            raise ValueError(f"needs an even dimension ≥ 2, 0 < seen ≤ 1 and noise ≥ 0, got {self}")

    def model(self) -> nn.Module:
        return _Product(self.dimension // 2)

    def initialise(self, model: nn.Module, draw: Stream) -> None:
        pass  # as LoRA does: one factor is zero, so the other has no gradient in the first step

    def batch(self, draw: Stream) -> Batch:
        half = self.dimension // 2
        return {
            "seen": torch.from_numpy(draw.uniform(half) < self.seen).float(),
            "noise": torch.from_numpy(draw.normal(half) / sqrt(half)).float(),
        }

    def loss(self, model: Model, batch: Batch) -> Tensor:
        away_H = model() - self.optimum().to(batch["noise"])
        loss: Tensor = (batch["seen"] * (0.5 * away_H * away_H + self.noise * batch["noise"] * away_H)).sum()
        return loss

    def evaluate(self, model: Model) -> dict[str, float]:
        away_H = model().double() - self.optimum().double()
        return {"loss": float(0.5 * (away_H * away_H).sum()), "distance": float(away_H.norm())}

    def optimum(self) -> Tensor:
        direction_H = torch.from_numpy(stream(0, "factors", "optimum").normal(self.dimension // 2))
        return torch.nn.functional.normalize(direction_H, dim=0).float()


class _Product(nn.Module):
    """Two factors, multiplied coordinate by coordinate."""

    def __init__(self, half: int) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.zeros(half))
        self.w = nn.Parameter(torch.ones(half))

    def forward(self) -> Tensor:
        return self.u * self.w
