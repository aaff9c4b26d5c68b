"""A quadratic bowl with known optimum, known curvature and known noise: what theory is held against."""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from troth.crypto import Stream, stream
from troth.training.task import Batch, Model, Task


@dataclass(frozen=True)
class Quadratic(Task):
    """½·Σ a_j (x_j − x*_j)² with gradient noise of norm `noise`; the optimum x* has norm 1"""

    dimension: int = 1000
    condition: float = 10.0  # curvatures a_j run evenly from 1/condition to 1
    noise: float = 0.1

    rate = 0.1
    tau = 0.1

    def __post_init__(self) -> None:
        if self.dimension < 1 or self.condition < 1 or self.noise < 0:
            raise ValueError(f"needs dimension ≥ 1, condition ≥ 1 and noise ≥ 0, got {self}")

    def model(self) -> nn.Module:
        return _Point(self.dimension)

    def initialise(self, model: nn.Module, draw: Stream) -> None:
        pass  # a point starts at the origin, at distance 1 from the optimum

    def batch(self, draw: Stream) -> Batch:
        return {"noise": torch.from_numpy(draw.normal(self.dimension) / sqrt(self.dimension)).float()}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        away_D = model() - self.optimum().to(batch["noise"])
        curvature_D = self.curvature().to(batch["noise"])
        loss: Tensor = 0.5 * (curvature_D * away_D * away_D).sum() + self.noise * (batch["noise"] * away_D).sum()
        return loss

    def evaluate(self, model: Model) -> dict[str, float]:
        away_D = model().double() - self.optimum().double()
        return {
            "loss": float(0.5 * (self.curvature().double() * away_D * away_D).sum()),
            "distance": float(away_D.norm()),
        }

    def curvature(self) -> Tensor:
        return torch.linspace(1 / self.condition, 1.0, self.dimension)

    def optimum(self) -> Tensor:
        direction_D = torch.from_numpy(stream(0, "quadratic", "optimum").normal(self.dimension))
        return torch.nn.functional.normalize(direction_D, dim=0).float()


class _Point(nn.Module):
    """A model that is its one parameter."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(dimension))

    def forward(self) -> Tensor:
        return self.x
