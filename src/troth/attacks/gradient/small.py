"""Lies so small that rounding or other hardware might explain them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from troth.attacks.gradient.base import GradientAttack, positive

# B colluders, H honest peers, D coordinates


@dataclass(frozen=True)
class Nudge(GradientAttack):
    """shift every coordinate by `size` of itself against the honest mean: so little that other hardware might explain it"""

    size: float = 0.01

    def __post_init__(self) -> None:
        positive("size", self.size)

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        # In proportion to itself, so that it is the same share of the gradient in every part, wherever parts begin.
        return own_BD - self.size * own_BD.abs() * honest_HD.mean(dim=0).sign()


@dataclass(frozen=True)
class Subnormal(GradientAttack):
    """put `size`, too small for float32 to average, where the own gradient is zero: honest owners are to fail over rounding"""

    size: float = 1e-45

    def __post_init__(self) -> None:
        positive("size", self.size)

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        return torch.where(own_BD == 0, torch.full_like(own_BD, self.size), own_BD)
