"""Directions and noise that follow from nothing but the coalition's seed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from troth.attacks.gradient.base import Forge, GradientAttack
from troth.crypto import Seed, stream

# B colluders, H honest peers, D coordinates


@dataclass(frozen=True)
class RandomDirection(GradientAttack, needs_honest=False, positive=("scale",)):
    """all send one common random direction, scale times as long as their gradients"""

    scale: float = 1000.0

    def begin(self, seed: Seed) -> Forge:
        def forge(_members: Sequence[int], own_BD: Tensor, _honest_HD: Tensor) -> Tensor:
            length = self.scale * torch.linalg.vector_norm(own_BD, dim=1).mean()
            common_D: Tensor = fixed_direction(seed, "random direction", own_BD) * length
            return common_D.expand_as(own_BD)

        return forge


@dataclass(frozen=True)
class SlowPoison(GradientAttack, needs_honest=False, positive=("share",)):
    """add `share` of the own gradient's length in one secret direction, the same in every step: little now, much in the end"""

    share: float = 0.1

    def begin(self, seed: Seed) -> Forge:
        def forge(_members: Sequence[int], own_BD: Tensor, _honest_HD: Tensor) -> Tensor:
            length_B = self.share * torch.linalg.vector_norm(own_BD, dim=1)
            moved_BD: Tensor = own_BD + length_B[:, None] * fixed_direction(seed, "slow poison", own_BD)
            return moved_BD

        return forge


@dataclass(frozen=True)
class Gaussian(GradientAttack, needs_honest=False, positive=("deviation",)):
    """send normal noise of this `deviation` in every coordinate, drawn anew by each colluder (Blanchard et al. 2017)"""

    deviation: float = 200.0

    def begin(self, seed: Seed) -> Forge:
        return _Drawing(self.deviation, seed)


class _Drawing:
    def __init__(self, deviation: float, seed: Seed) -> None:
        self._deviation = deviation
        self._seed = seed
        self._drawn: Counter[int] = Counter()  # rows so far, by member

    def __call__(self, members: Sequence[int], own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        rows = []
        for member in members:
            noise = stream(self._seed, "gaussian", member, self._drawn[member]).normal(own_BD.shape[1])
            rows.append(torch.from_numpy(noise).to(own_BD) * self._deviation)
            self._drawn[member] += 1
        return torch.stack(rows)


def fixed_direction(seed: Seed, purpose: str, like_BD: Tensor) -> Tensor:
    """A unit vector that follows from the seed: one direction for the whole run. It is not to be changed in place."""
    return _drawn_direction(seed, purpose, like_BD.shape[1], like_BD.dtype, like_BD.device)


@lru_cache(maxsize=1)  # a run asks for the same one in every step, and drawing ten million numbers takes a second
def _drawn_direction(seed: Seed, purpose: str, dimension: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    direction_D = torch.from_numpy(stream(seed, purpose).normal(dimension)).to(device, dtype)
    unit_D: Tensor = direction_D / torch.linalg.vector_norm(direction_D)
    return unit_D
