"""Lies about gradients: rows that colluders send in place of those they computed.

Each attack is a frozen set of options. It may poison the batch before the gradient is computed, and it forges the rows
that the colluders send, knowing everything: their own gradients and those of all honest peers. Honest code knows nothing
of it. A new attack is a class here and a row in `ATTACKS`.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, inf, isfinite
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from troth.attacks.colluder import ColludingChannel
from troth.attacks.errors import AttackError
from troth.crypto import Seed, stream
from troth.training import Batch, Task

# B colluders, H honest peers, D coordinates
Forge = Callable[[Sequence[int], Tensor, Tensor], Tensor]  # (members, own_BD, honest_HD) → rows to send, B×D


class GradientAttack:
    """Base of all attacks, which behaves honestly; each overrides what it lies about."""

    behaviour: ClassVar[type["ColludingChannel"]] = ColludingChannel  # wraps its colluders' channels
    needs_protocol: ClassVar[bool] = False  # whether it has nothing to attack where there is a trusted server
    needs_honest: ClassVar[bool] = True  # whether `forge` looks at honest gradients
    covers: ClassVar[bool] = False  # whether colluders absorb an owner's lie in their reports (SPEC T7)

    def check(self, task: Task, *, honest: int, colluders: int) -> None:
        """Raise `AttackError` where the attack is not defined."""

    def poison(self, task: Task, batch: Batch) -> Batch:
        """Batch that a colluder computes its gradient on while it attacks."""
        return batch

    def begin(self, seed: Seed) -> Forge:
        """Forging function of one run, called at every step (also before the attack) with the contributing colluders."""
        return lambda _members, own_BD, honest_HD: self.forge(own_BD, honest_HD)

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        return own_BD


@dataclass(frozen=True)
class SignFlip(GradientAttack):
    """send the own gradient times −scale"""

    scale: float = 1000.0
    needs_honest: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive("scale", self.scale)

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        return own_BD * -self.scale


@dataclass(frozen=True)
class RandomDirection(GradientAttack):
    """all send one common random direction, scale times as long as their gradients"""

    scale: float = 1000.0
    needs_honest: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive("scale", self.scale)

    def begin(self, seed: Seed) -> Forge:
        def forge(_members: Sequence[int], own_BD: Tensor, _honest_HD: Tensor) -> Tensor:
            draw = stream(seed, "random direction")  # drawn anew from the same stream: one direction for the whole run
            direction_D = torch.from_numpy(draw.normal(own_BD.shape[1])).to(own_BD)
            length = self.scale * torch.linalg.vector_norm(own_BD, dim=1).mean()
            common_D: Tensor = direction_D / torch.linalg.vector_norm(direction_D) * length
            return common_D.expand_as(own_BD)

        return forge


@dataclass(frozen=True)
class LabelFlip(GradientAttack):
    """compute the gradient on labels turned round: class y becomes (classes − 1) − y"""

    needs_honest: ClassVar[bool] = False

    def check(self, task: Task, *, honest: int, colluders: int) -> None:
        if task.classes is None:
            raise AttackError("label-flip needs a task with labels, and this one has none: choose another attack")

    def poison(self, task: Task, batch: Batch) -> Batch:
        assert task.classes is not None
        return {**batch, "labels": task.classes - 1 - batch["labels"]}


@dataclass(frozen=True)
class DelayedGradient(GradientAttack):
    """send the own gradient of `delay` contributions ago"""

    delay: int = 50
    needs_honest: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.delay < 1:
            raise ValueError(f"delay must be at least 1 step, got {self.delay}")

    def begin(self, seed: Seed) -> Forge:
        past: dict[int, deque[Tensor]] = defaultdict(lambda: deque(maxlen=self.delay + 1))

        def forge(members: Sequence[int], own_BD: Tensor, _honest_HD: Tensor) -> Tensor:
            for member, own_D in zip(members, own_BD, strict=True):
                past[member].append(own_D)
            # The oldest there is, while the run is younger than the delay.
            return torch.stack([past[member][0] for member in members])

        return forge


@dataclass(frozen=True)
class InnerProduct(GradientAttack):
    """send −epsilon times the mean of the honest gradients (inner-product manipulation)"""

    epsilon: float = 0.6

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)

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
class Nudge(GradientAttack):
    """shift every coordinate by `size` of itself against the honest mean: so little that other hardware might explain it"""

    size: float = 0.01

    def __post_init__(self) -> None:
        positive("size", self.size)

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        # In proportion to itself, so that it is the same share of the gradient in every part, wherever parts begin.
        return own_BD - self.size * own_BD.abs() * honest_HD.mean(dim=0).sign()


@dataclass(frozen=True)
class Inflate(GradientAttack):
    """send the own gradient `scale` times as long, to push the clipping radius and the limits up"""

    scale: float = 10.0

    def __post_init__(self) -> None:
        positive("scale", self.scale)

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        return own_BD * self.scale


@dataclass(frozen=True)
class Subnormal(GradientAttack):
    """put `size`, too small for float32 to average, where the own gradient is zero: honest owners are to fail over rounding"""

    size: float = 1e-45

    def __post_init__(self) -> None:
        positive("size", self.size)

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        return torch.where(own_BD == 0, torch.full_like(own_BD, self.size), own_BD)


def alie_deviations(peers: int, byzantine: int) -> float:
    """`z = Φ⁻¹((n − b − s)/(n − b))` with `s = ⌊n/2 + 1⌋ − b` supporters needed (Baruch et al. 2019)."""
    needed = floor(peers / 2 + 1) - byzantine
    honest = peers - byzantine
    share = (honest - needed) / honest
    return NormalDist().inv_cdf(share) if 0 < share < 1 else inf


def positive(name: str, value: float) -> None:
    if not (value > 0 and isfinite(value)):
        raise ValueError(f"{name} must be a positive number, got {value}")
