"""Attacks on a defence that they know: made against one rule, or found by trying rows on the rule itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, isfinite, radians, sin

import torch
from torch import Tensor

from troth.attacks.errors import AttackError
from troth.attacks.gradient.base import Foresee, Forge, GradientAttack, Scene, WatchingForge
from troth.attacks.gradient.noise import fixed_direction
from troth.attacks.gradient.spread import alie_deviations
from troth.crypto import Seed
from troth.training import Task

# B colluders, H honest peers, P contributors (colluders, then honest peers), D coordinates

_SCALES = (0.3, 1.0, 2.0, 5.0, 30.0, 1000.0)  # in units of the usual distance from the honest mean
_DAMAGES = ("against", "distance")
_TINY = 1e-30


@dataclass(frozen=True)
class RelocatedOrthogonal(GradientAttack):
    """step from the last aggregate at right angles to where training goes: the ROP attack on centred clipping"""

    relocation: float = 1.0
    reference: float = 0.9
    angle: float = 90.0
    z: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("relocation", self.relocation), ("reference", self.reference)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {value}")

    def check(self, task: Task, *, honest: int, colluders: int) -> None:
        if self.z is None and not isfinite(alie_deviations(honest + colluders, colluders)):
            raise AttackError(
                f"rop takes its length z from alie, which is not defined for {colluders} liars among "
                f"{honest + colluders} peers: set z"
            )

    def begin(self, seed: Seed) -> Forge:
        return self.begin_against(seed, mean_of_rows)

    def begin_against(self, seed: Seed, foresee: Foresee) -> Forge:
        return _Relocating(self, foresee)


class _Relocating(WatchingForge):
    """Özfatura et al. (arXiv 2208.09894), as in the code that its authors released.

    With the last aggregate m, the honest mean μ, π = `relocation`, λ = `reference`, θ = `angle`: the row is `π·m + (1 − π)·μ +
    z·(sin θ·p̂ + cos θ·r̂)`, where r̂ has the direction of `λ·m + (1 − λ)·μ` and p̂ that of the vector of ones less its projection
    on r̂. Before there is an aggregate, m is 0, and r̂ is the direction of μ.
    """

    def __init__(self, options: RelocatedOrthogonal, foresee: Foresee) -> None:
        self._options = options
        self._foresee = foresee
        self._last_D: Tensor | None = None

    def __call__(self, members: Sequence[int], own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        options, mean_D = self._options, honest_HD.mean(dim=0)
        last_D = mean_D if self._last_D is None else self._last_D
        place_D = torch.zeros_like(mean_D) if self._last_D is None else self._last_D
        place_D = options.relocation * place_D + (1 - options.relocation) * mean_D
        reference_D = unit(options.reference * last_D + (1 - options.reference) * mean_D)
        ones_D = torch.ones_like(mean_D)
        across_D = unit(ones_D - (ones_D @ reference_D) * reference_D)
        theta = radians(options.angle)
        away_D = sin(theta) * across_D + cos(theta) * reference_D
        return (place_D + self._length(len(own_BD), len(honest_HD)) * away_D).expand_as(own_BD)

    def _length(self, colluders: int, honest: int) -> float:
        z = alie_deviations(honest + colluders, colluders) if self._options.z is None else self._options.z
        return z if isfinite(z) else 1.0  # not defined among those that are left

    def after(self, sent_PD: Tensor) -> None:
        self._last_D = self._foresee(sent_PD)


@dataclass(frozen=True)
class Tailored(GradientAttack):
    """try four directions at six lengths on the defence itself, and send the rows that do the most damage"""

    damage: str = "against"

    def __post_init__(self) -> None:
        if self.damage not in _DAMAGES:
            raise ValueError(f"damage is one of {', '.join(_DAMAGES)}, got '{self.damage}'")

    def begin(self, seed: Seed) -> Forge:
        return self.begin_against(seed, mean_of_rows)

    def begin_against(self, seed: Seed, foresee: Foresee) -> Forge:
        return _Trying(self.damage, seed, foresee)


class _Trying(WatchingForge):
    """Rows `μ + s·u·d̂`: μ the honest mean, u the mean distance of honest rows from it, s a scale, d̂ a unit direction.

    Directions are −μ, −sign(μ), −σ of every coordinate, and a fixed one at right angles to μ. The damage is how far the aggregate
    a that the defence would make falls back along μ, `⟨μ − a, μ⟩/‖μ‖`, or `‖μ − a‖` where distance is asked for.
    """

    def __init__(self, damage: str, seed: Seed, foresee: Foresee) -> None:
        self._damage = damage
        self._seed = seed
        self._foresee = foresee
        self._active = True

    def before(self, scene: Scene) -> None:
        self._active = scene.active

    def __call__(self, members: Sequence[int], own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        if not self._active:
            return own_BD  # nobody will see it: save the peeks
        mean_D = honest_HD.mean(dim=0)
        usual = torch.linalg.vector_norm(honest_HD - mean_D, dim=1).mean()
        worst, rows_BD = -float("inf"), own_BD
        for direction_D in self._directions(honest_HD, mean_D):
            for scale in _SCALES:
                tried_BD = (mean_D + scale * usual * direction_D).expand_as(own_BD)
                damage = self._done(self._foresee(torch.cat([tried_BD, honest_HD])), mean_D)
                if damage > worst:
                    worst, rows_BD = damage, tried_BD
        return rows_BD

    def _directions(self, honest_HD: Tensor, mean_D: Tensor) -> list[Tensor]:
        mean_unit_D = unit(mean_D)
        across_D = fixed_direction(self._seed, "tailored", honest_HD)
        across_D = across_D - (across_D @ mean_unit_D) * mean_unit_D
        spread_D = honest_HD.std(dim=0, correction=0)
        return [unit(direction_D) for direction_D in (-mean_D, -mean_D.sign(), -spread_D, across_D)]

    def _done(self, aggregate_D: Tensor, mean_D: Tensor) -> float:
        lost_D = mean_D - aggregate_D
        return float(torch.linalg.vector_norm(lost_D) if self._damage == "distance" else lost_D @ unit(mean_D))


def mean_of_rows(rows_PD: Tensor) -> Tensor:
    """What the plain mean would make of rows: the guess of colluders who do not know the defence."""
    return rows_PD.mean(dim=0)


def unit(vector_D: Tensor) -> Tensor:
    found_D: Tensor = vector_D / torch.linalg.vector_norm(vector_D).clamp(min=_TINY)
    return found_D
