"""Rows made from the honest ones' mean and spread, so that they look like one of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import floor, inf, isfinite
from statistics import NormalDist

import torch
from torch import Tensor

from troth.attacks.errors import AttackError
from troth.attacks.gradient.base import GradientAttack
from troth.training import Task

# B colluders, H honest peers, D coordinates

_HALVINGS = 60  # of the interval that γ is in: more than float64 can tell apart
_DOUBLINGS = 100


@dataclass(frozen=True)
class InnerProduct(GradientAttack, positive=("epsilon",)):
    """send −epsilon times the mean of the honest gradients (inner-product manipulation)"""

    epsilon: float = 0.6

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        return (honest_HD.mean(dim=0) * -self.epsilon).expand_as(own_BD)


@dataclass(frozen=True)
class InnerProductSmall(InnerProduct):
    """the same with epsilon 0.1: too small a lie for a norm to show it"""

    epsilon: float = 0.1


@dataclass(frozen=True)
class ALittleIsEnough(GradientAttack):
    """shift every coordinate by as many honest standard deviations as still looks normal (ALIE)"""

    def check(self, task: Task, *, honest: int, colluders: int) -> None:
        if honest < 2 or not isfinite(alie_deviations(honest + colluders, colluders)):
            raise AttackError(f"alie is not defined for {colluders} liars among {honest + colluders} peers")

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        colluders, honest = len(own_BD), len(honest_HD)
        z = alie_deviations(honest + colluders, colluders)
        mean_D, deviation_D = honest_HD.mean(dim=0), honest_HD.std(dim=0, correction=1)
        return (mean_D - z * deviation_D).expand_as(own_BD)


@dataclass(frozen=True)
class _Farthest(GradientAttack, ABC):
    """`μ + γ·p` with the honest mean μ, a direction p, and the largest γ that fits (Shejwalkar and Houmansadr 2021)."""

    direction: str = "std"

    def __post_init__(self) -> None:
        if self.direction not in DIRECTIONS:
            raise ValueError(f"direction is one of {', '.join(DIRECTIONS)}, got '{self.direction}'")

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        mean_D = honest_HD.mean(dim=0)
        direction_D = DIRECTIONS[self.direction](honest_HD, mean_D)
        # ‖μ + γp − g_i‖² = ‖μ − g_i‖² + 2γ·p·(μ − g_i) + γ²‖p‖²: after these products the search needs no vectors.
        away_HD = (mean_D - honest_HD).double()
        apart_H = away_HD.square().sum(dim=1).cpu()
        along_H = (away_HD @ direction_D.double()).cpu()
        length = float(direction_D.double().square().sum())
        apart_HH = torch.cdist(away_HD, away_HD, compute_mode="donot_use_mm_for_euclid_dist").square().cpu()

        def fits(gamma: float) -> bool:
            return self._fits(apart_H + 2 * gamma * along_H + gamma * gamma * length, apart_HH)

        return (mean_D + largest(fits) * direction_D).expand_as(own_BD)

    @abstractmethod
    def _fits(self, square_H: Tensor, honest_HH: Tensor) -> bool:
        """Whether squared distances from the forged row are small enough, given those among honest rows."""


@dataclass(frozen=True)
class MinMax(_Farthest):
    """go from the honest mean as far that way as stays within the largest distance of two honest rows from all of them"""

    def _fits(self, square_H: Tensor, honest_HH: Tensor) -> bool:
        return bool(square_H.max() <= honest_HH.max())


@dataclass(frozen=True)
class MinSum(_Farthest):
    """go as far that way as the sum of squared distances from honest rows stays within that of the farthest honest row"""

    def _fits(self, square_H: Tensor, honest_HH: Tensor) -> bool:
        return bool(square_H.sum() <= honest_HH.sum(dim=1).max())


DIRECTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "std": lambda honest_HD, _: -honest_HD.std(dim=0, correction=1 if len(honest_HD) > 1 else 0),
    "unit": lambda _, mean_D: -mean_D / torch.linalg.vector_norm(mean_D).clamp(min=1e-30),
    "sign": lambda _, mean_D: -mean_D.sign(),
}


def largest(fits: Callable[[float], bool]) -> float:
    """The largest γ ≥ 0 that fits, by doubling and then by bisection; 0 where the constraint leaves no room."""
    low, high = 0.0, 1.0
    for _ in range(_DOUBLINGS):
        if not fits(high):
            break
        low, high = high, 2 * high
    else:
        return 0.0  # a direction of length zero
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def alie_deviations(peers: int, byzantine: int) -> float:
    """`z = Φ⁻¹((n − b − s)/(n − b))` with `s = ⌊n/2 + 1⌋ − b` supporters needed (Baruch et al. 2019)."""
    needed = floor(peers / 2 + 1) - byzantine
    honest = peers - byzantine
    share = (honest - needed) / honest
    return NormalDist().inv_cdf(share) if 0 < share < 1 else inf
