"""Small problems whose constants are known, one of each class that convergence theory speaks of.

Each is a sum over coordinates, with its minimum 0 at the origin, smoothness L = 1, and gradient noise of known size. The
run starts at `start·(1, …, 1)/√dimension`, so at distance `start`; 0 starts at the minimum, where all that is seen is the
noise and the lies.

Noise is σ·ξ: for `gaussian` E‖ξ‖² = 1. For `heavy` a Gaussian vector is made longer by the factor ρ = u^(−3/4)/4 with u
uniform: E ρ = 1, and E ρᵃ is infinite from a = 4/3 on, so there is no variance. Only square roots and divisions are
needed, whose bits are the same on every machine.
"""

from abc import abstractmethod
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from torch import Tensor, nn

from troth.crypto import Stream, stream
from troth.training.task import Batch, Model, Task, check_choices

# D coordinates

TAILS = ("gaussian", "heavy")


@dataclass(frozen=True)
class Synthetic(Task):
    """Base of these problems: each says what it adds up, and the derivative of that."""

    dimension: int = 64
    noise: float = 1.0  # σ
    tail: str = "gaussian"
    start: float = 1.0  # distance of the first point from the minimum

    optimizer = "sgd:momentum=0,nesterov=false"  # plain SGD, as in the theorems
    rate = 0.25
    tau = 1.0

    def __post_init__(self) -> None:
        if self.dimension < 1 or self.noise < 0 or self.start < 0:
            raise ValueError(f"needs dimension ≥ 1, noise ≥ 0 and start ≥ 0, got {self}")
        check_choices(self, tail=TAILS)

    @abstractmethod
    def value(self, x_D: Tensor) -> Tensor:
        """The function, one number."""

    @abstractmethod
    def slope(self, x_D: Tensor) -> Tensor:
        """Its gradient, written down by hand."""

    def model(self) -> nn.Module:
        return _Point(self.dimension, self.start)

    def batch(self, draw: Stream) -> Batch:
        noise_D = draw.normal(self.dimension) / sqrt(self.dimension)
        if self.tail == "heavy":
            root = np.sqrt(1.0 - draw.uniform(1))  # in (0, 1]
            noise_D = noise_D / (4.0 * root * np.sqrt(root))
        return {"noise": torch.from_numpy(self.noise * noise_D).float()}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        x_D = model()
        loss: Tensor = self.value(x_D) + (batch["noise"] * x_D).sum()
        return loss

    def evaluate(self, model: Model) -> dict[str, float]:
        """Without noise: gap to the minimum, norm of the gradient, distance from the minimum."""
        x_D = model().double()
        return {
            "loss": float(self.value(x_D)),
            "gradient": float(self.slope(x_D).norm()),
            "distance": float(x_D.norm()),
        }


@dataclass(frozen=True)
class NonConvex(Synthetic):
    """½·Σ x²/(1 + x²): not convex beyond |x| = 1/√3, and almost flat far out"""

    def value(self, x_D: Tensor) -> Tensor:
        squared_D = x_D * x_D
        return 0.5 * (squared_D / (1 + squared_D)).sum()

    def slope(self, x_D: Tensor) -> Tensor:
        return x_D / (1 + x_D * x_D) ** 2


@dataclass(frozen=True)
class Convex(Synthetic):
    """Σ x⁴/12, continued by straight lines beyond |x| = 1: convex, with no curvature at its minimum"""

    def value(self, x_D: Tensor) -> Tensor:
        near_D = x_D.clamp(-1, 1)
        return (near_D**4 / 12 + (x_D - near_D) * near_D / 3).sum()

    def slope(self, x_D: Tensor) -> Tensor:
        return x_D.clamp(-1, 1) ** 3 / 3


@dataclass(frozen=True)
class StronglyConvex(Synthetic):
    """½·Σ a·x², curvatures a evenly from 1/condition to 1"""

    condition: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.condition < 1:
            raise ValueError(f"condition is at least 1, got {self.condition}")

    def value(self, x_D: Tensor) -> Tensor:
        return 0.5 * (self._curvature(x_D) * x_D * x_D).sum()

    def slope(self, x_D: Tensor) -> Tensor:
        return self._curvature(x_D) * x_D

    def _curvature(self, x_D: Tensor) -> Tensor:
        return torch.linspace(1 / self.condition, 1.0, self.dimension).to(x_D)


def _unit(draw: Stream, dimension: int) -> Tensor:
    """A vector of length 1 in a drawn direction."""
    return nn.functional.normalize(torch.from_numpy(draw.normal(dimension)), dim=0).float()


class _Point(nn.Module):
    """A model that is its one parameter."""

    def __init__(self, dimension: int, start: float) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.full((dimension,), start / sqrt(dimension)))

    def forward(self) -> Tensor:
        return self.x


# A quadratic bowl with known optimum, known curvature and known noise: what theory is held against.


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
        return _Point(self.dimension, 0.0)  # at distance 1 from the optimum

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
        return _unit(stream(0, "quadratic", "optimum"), self.dimension)


# A product of two vectors, one of them zero at first: gradients with parts of nothing but zeros, and sparse ones.


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
        return _unit(stream(0, "factors", "optimum"), self.dimension // 2)


class _Product(nn.Module):
    """Two factors, multiplied coordinate by coordinate. As in LoRA one is zero: the other has no gradient in the first step."""

    def __init__(self, half: int) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.zeros(half))
        self.w = nn.Parameter(torch.ones(half))

    def forward(self) -> Tensor:
        return self.u * self.w
