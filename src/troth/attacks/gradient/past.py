"""Rows that somebody else, or the colluder itself, has sent before or sends now: copies that no norm gives away."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from troth.attacks.gradient.base import Forge, GradientAttack, Scene, WatchingForge
from troth.attacks.gradient.noise import fixed_direction
from troth.crypto import Seed

# B colluders, H honest peers, D coordinates


@dataclass(frozen=True)
class DelayedGradient(GradientAttack, needs_honest=False):
    """send the own gradient of `delay` contributions ago"""

    delay: int = 50

    def __post_init__(self) -> None:
        if self.delay < 1:
            raise ValueError(f"delay must be at least 1 step, got {self.delay}")

    def begin(self, seed: Seed) -> Forge:
        return _Delaying(self.delay)


class _Delaying:
    def __init__(self, delay: int) -> None:
        self._delay = delay
        self._past: dict[int, deque[Tensor]] = defaultdict(self._nothing)  # own rows, by member

    def _nothing(self) -> deque[Tensor]:
        return deque(maxlen=self._delay + 1)

    def __call__(self, members: Sequence[int], own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        for member, own_D in zip(members, own_BD, strict=True):
            self._past[member].append(own_D)
        # The oldest there is, while the run is younger than the delay.
        return torch.stack([self._past[member][0] for member in members])


@dataclass(frozen=True)
class Mimic(GradientAttack):
    """all copy the one honest peer that is farthest in the direction of most variance, found in `warmup` steps"""

    warmup: int = 1

    def __post_init__(self) -> None:
        if self.warmup < 1:
            raise ValueError(f"warmup must be at least 1 step, got {self.warmup}")

    def begin(self, seed: Seed) -> Forge:
        return _Mimicking(self.warmup, seed)


class _Mimicking(WatchingForge):
    """Karimireddy et al. (2022): `z` follows, over the warm-up, the direction of largest variance among the honest rows.

    With the running mean `μ_t = (t·μ_{t−1} + mean_i g_i)/(t + 1)` and `c_t = Σ_i ⟨g_i − μ_t, z⟩·(g_i − μ_t)`, one step of a power
    iteration, `z_0 = c_0/‖c_0‖` from a random z, and then `z_t ∝ t·z_{t−1} + c_t/‖c_t‖`. The target of a step is the largest
    `⟨g_i, z⟩`; after the warm-up it stays.
    """

    def __init__(self, warmup: int, seed: Seed) -> None:
        self._warmup = warmup
        self._seed = seed
        self._seen = 0
        self._honest: Sequence[int] = ()
        self._mean_D: Tensor | None = None
        self._z_D: Tensor | None = None
        self._target: int | None = None

    def before(self, scene: Scene) -> None:
        self._honest = scene.honest

    def __call__(self, members: Sequence[int], own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        numbers = list(self._honest) or list(range(len(honest_HD)))
        if self._seen < self._warmup:
            self._z_D = self._turned(honest_HD)
            self._target = None
        self._seen += 1
        assert self._z_D is not None
        best = int((honest_HD @ self._z_D).argmax())
        if self._target is None:
            self._target = numbers[best]
        # A target that sits this step out, since it validates, is stood in for by whoever is farthest now.
        row = numbers.index(self._target) if self._target in numbers else best
        return honest_HD[row].expand_as(own_BD)

    def _turned(self, honest_HD: Tensor) -> Tensor:
        """The direction of largest variance, as one more step shows it."""
        t, now_D = self._seen, honest_HD.mean(dim=0)
        self._mean_D = now_D if self._mean_D is None else (t * self._mean_D + now_D) / (t + 1)
        z_D = fixed_direction(self._seed, "mimic", honest_HD) if self._z_D is None else self._z_D
        away_HD = honest_HD - self._mean_D
        turned_D = (away_HD @ z_D) @ away_HD
        length = torch.linalg.vector_norm(turned_D)
        if not length > 0:
            return z_D  # no variance in this direction
        mixed_D = (t * z_D + turned_D / length) / (t + 1)
        unit_D: Tensor = mixed_D / torch.linalg.vector_norm(mixed_D)
        return unit_D
