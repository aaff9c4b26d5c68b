"""Rows made from the honest ones' mean and spread, so that they look like one of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import cos, floor, inf, isfinite, radians, sin
from statistics import NormalDist

import torch
from torch import Tensor

from troth.crypto import Seed
from troth.training import Task
from troth.workshop.attacks.base import AttackError, Foresee, Forge, GradientAttack, Scene, WatchingForge
from troth.workshop.attacks.gradient_lies import fixed_direction

# B colluders, H honest peers, P contributors (colluders, then honest peers), D coordinates

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


DIRECTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "std": lambda honest_HD, _: -honest_HD.std(dim=0, correction=1 if len(honest_HD) > 1 else 0),
    "unit": lambda _, mean_D: -mean_D / torch.linalg.vector_norm(mean_D).clamp(min=1e-30),
    "sign": lambda _, mean_D: -mean_D.sign(),
}


@dataclass(frozen=True)
class _Farthest(GradientAttack, ABC, choices={"direction": DIRECTIONS}):
    """`μ + γ·p` with the honest mean μ, a direction p, and the largest γ that fits (Shejwalkar and Houmansadr 2021)."""

    direction: str = "std"

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


# Attacks on a defence that they know: made against one rule, or found by trying rows on the rule itself.

_SCALES = (0.3, 1.0, 2.0, 5.0, 30.0, 1000.0)  # in units of the usual distance from the honest mean
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
class Tailored(GradientAttack, choices={"damage": ("against", "distance")}):
    """try four directions at six lengths on the defence itself, and send the rows that do the most damage"""

    damage: str = "against"

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
