"""Rows that need no knowledge: the own gradient times a number, or something else that says nothing."""

from dataclasses import dataclass

import torch
from torch import Tensor

from troth.attacks.gradient.base import GradientAttack

# B colluders, H honest peers, D coordinates

_PLACES = ("all", "one")
_VALUES = ("nan", "inf", "-inf")


@dataclass(frozen=True)
class SignFlip(GradientAttack, needs_honest=False, positive=("scale",)):
    """send the own gradient times −scale"""

    scale: float = 1000.0

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        return own_BD * -self.scale


@dataclass(frozen=True)
class BitFlip(GradientAttack, needs_honest=False):
    """send the own gradient times −1: the "bit flip" of Karimireddy et al. (2021), a sign flip as long as the gradient"""

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        return -own_BD


@dataclass(frozen=True)
class Inflate(GradientAttack, positive=("scale",)):
    """send the own gradient `scale` times as long, to push the clipping radius and the limits up"""

    scale: float = 10.0

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        return own_BD * self.scale


@dataclass(frozen=True)
class Zero(GradientAttack, needs_honest=False):
    """send zeros: no work, and a smaller step for everyone"""

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        return torch.zeros_like(own_BD)


@dataclass(frozen=True)
class NotFinite(GradientAttack, needs_honest=False):
    """send `value` (nan, inf or -inf) in all coordinates, or in one of an otherwise honest gradient"""

    value: str = "nan"
    where: str = "all"

    def __post_init__(self) -> None:
        if self.value not in _VALUES:
            raise ValueError(f"value is one of {', '.join(_VALUES)}, got '{self.value}'")
        if self.where not in _PLACES:
            raise ValueError(f"where is one of {', '.join(_PLACES)}, got '{self.where}'")

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        rows_BD = own_BD.clone()
        rows_BD[:, slice(None) if self.where == "all" else 0] = float(self.value)
        return rows_BD
