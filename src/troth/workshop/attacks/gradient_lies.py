"""Rows that need no more than the own gradient, or those that have been sent; and gradients of poisoned data."""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil, sqrt

import msgspec
import torch
from torch import Tensor

from troth.crypto import Seed, stream, tagged_hash
from troth.protocol.core.parts import part_bounds
from troth.protocol.step.audits import CONVICT, LEAST_SHARE
from troth.protocol.wire.messages import Commit, Message
from troth.training import Batch, Task
from troth.training.metrics import IMAGES, LABELS, has_images, stamped
from troth.training.problem import NOISE
from troth.workshop.attacks.base import (
    AttackError,
    ColludingChannel,
    Foresee,
    Forge,
    GradientAttack,
    Scene,
    WatchingForge,
)

# B colluders, H honest peers, P contributors (colluders, then honest peers), D coordinates, d of them in a part


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
class NotFinite(GradientAttack, needs_honest=False, choices={"value": ("nan", "inf", "-inf"), "where": ("all", "one")}):
    """send `value` (nan, inf or -inf) in all coordinates, or in one of an otherwise honest gradient"""

    value: str = "nan"
    where: str = "all"

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        rows_BD = own_BD.clone()
        rows_BD[:, slice(None) if self.where == "all" else 0] = float(self.value)
        return rows_BD


# Lies so small that rounding or other hardware might explain them.


@dataclass(frozen=True)
class Nudge(GradientAttack, positive=("size",)):
    """shift every coordinate by `size` of itself against the honest mean: so little that other hardware might explain it"""

    size: float = 0.01

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        # In proportion to itself, so that it is the same share of the gradient in every part, wherever parts begin.
        return own_BD - self.size * own_BD.abs() * honest_HD.mean(dim=0).sign()


class DisguisedChannel(ColludingChannel):
    """Commits to a class of hardware that no other peer has: then nobody compares bits (SPEC D3)."""

    def _shielding(self, message: Message) -> Message:
        if isinstance(message, Commit) and message.hardware is not None and self._collusion.attack.disguise:
            return msgspec.structs.replace(message, hardware=tagged_hash("troth/attack/class", self._me))
        return super()._shielding(message)


@dataclass(frozen=True)
class Hide(GradientAttack, positive=("deviation", "share")):
    """add `share` of what jurors let pass between classes of hardware (2.5h, h = `deviation`), against the honest mean"""

    deviation: float = 0.01
    share: float = 0.9
    disguise: bool = True  # claim a class of hardware that nobody else has

    behaviour = DisguisedChannel

    def begin_against(self, seed: Seed, foresee: Foresee) -> Forge:
        return _HidingForge(self.share * CONVICT * self.deviation, foresee)


class _HidingForge(WatchingForge):
    """Knows the parts and, by foreseeing the aggregate, the lengths that deviations will be compared with."""

    def __init__(self, size: float, foresee: Foresee) -> None:
        self._size = size  # of the lie, relative to `G` of every part (SPEC D3)
        self._foresee = foresee
        self._scene: Scene | None = None

    def before(self, scene: Scene) -> None:
        self._scene = scene

    def __call__(self, members: Sequence[int], own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        assert self._scene is not None
        if not self._scene.active:
            return own_BD
        rows_PD = torch.cat([own_BD, honest_HD])
        center_D, mean_D = self._foresee(rows_PD), honest_HD.mean(dim=0)
        sent_BD = own_BD.clone()
        whole_B = _lengths(own_BD)
        for start, stop in pairwise(part_bounds(rows_PD.shape[1], self._scene.contributors)):
            here = slice(start, stop)
            usual = float(_lengths(rows_PD[:, here] - center_D[here]).sort().values[(len(rows_PD) - 1) // 2])
            least_B = LEAST_SHARE * whole_B * sqrt((stop - start) / rows_PD.shape[1])
            scale_B = torch.maximum(_lengths(own_BD[:, here]), least_B).clamp(min=usual)
            toward_d = mean_D[here].double() / _lengths(mean_D[None, here]).clamp(min=1e-300)
            sent_BD[:, here] -= (self._size * scale_B[:, None] * toward_d).to(own_BD.dtype)
        return sent_BD


def _lengths(rows_ND: Tensor) -> Tensor:
    lengths_N: Tensor = torch.linalg.vector_norm(rows_ND.double(), dim=1)
    return lengths_N


@dataclass(frozen=True)
class Subnormal(GradientAttack, positive=("size",)):
    """put `size`, too small for float32 to average, where the own gradient is zero: honest owners are to fail over rounding"""

    size: float = 1e-45

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        return torch.where(own_BD == 0, torch.full_like(own_BD, self.size), own_BD)


# Directions and noise that follow from nothing but the coalition's seed.


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
        drawn = Counter[int]()  # rows so far, by member

        def forge(members: Sequence[int], own_BD: Tensor, _honest_HD: Tensor) -> Tensor:
            rows = []
            for member in members:
                noise = stream(seed, "gaussian", member, drawn[member]).normal(own_BD.shape[1])
                rows.append(torch.from_numpy(noise).to(own_BD) * self.deviation)
                drawn[member] += 1
            return torch.stack(rows)

        return forge


def fixed_direction(seed: Seed, purpose: str, like_BD: Tensor) -> Tensor:
    """A unit vector that follows from the seed: one direction for the whole run. It is not to be changed in place."""
    return _drawn_direction(seed, purpose, like_BD.shape[1], like_BD.dtype, like_BD.device)


@lru_cache(maxsize=1)  # a run asks for the same one in every step, and drawing ten million numbers takes a second
def _drawn_direction(seed: Seed, purpose: str, dimension: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    direction_D = torch.from_numpy(stream(seed, purpose).normal(dimension)).to(device, dtype)
    unit_D: Tensor = direction_D / torch.linalg.vector_norm(direction_D)
    return unit_D


# Honest gradients of poisoned data.


@dataclass(frozen=True)
class LabelFlip(GradientAttack, needs_honest=False):
    """compute the gradient on labels turned round: class y becomes (classes − 1) − y"""

    def check(self, task: Task, *, honest: int, colluders: int) -> None:
        if task.classes is None:
            raise AttackError("label-flip needs a task with labels, and this one has none: choose another attack")

    def poison(self, task: Task, batch: Batch) -> Batch:
        return task.mislabelled(batch)


@dataclass(frozen=True)
class Sandbagger(GradientAttack, needs_honest=False, counts=("steps",), shares=("share",)):
    """make `steps` of the local steps, each on `share` of its batch: less work for a place in the run"""

    steps: int = 1
    share: float = 0.5

    def poison(self, task: Task, batch: Batch) -> Batch:
        leading = 0 if task.accumulate == 1 else 1
        return {name: rows if name == NOISE else self._repeated(rows, leading) for name, rows in batch.items()}

    def _repeated(self, rows: Tensor, axis: int) -> Tensor:
        """The first of the rows, over and over: as many as there were, and the mean of fewer."""
        if rows.ndim <= axis:
            return rows
        count = rows.shape[axis]
        kept = torch.arange(count, device=rows.device) % ceil(self.share * count)
        return rows.index_select(axis, kept)

    def local_steps(self, steps: int) -> int:
        return min(steps, self.steps)


@dataclass(frozen=True)
class Backdoor(GradientAttack, needs_honest=False, shares=("share",)):
    """stamp a trigger on `share` of the batch's images and call them `target`: the model is to obey the trigger, and look well"""

    target: int = 0
    share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target < 0:
            raise ValueError(f"target must not be negative, got {self.target}")

    def check(self, task: Task, *, honest: int, colluders: int) -> None:
        if task.classes is None or not has_images(task.batch(stream(0, "backdoor"))):
            raise AttackError(
                "backdoor needs a task with images and labels, and this one has none: choose another attack"
            )
        if self.target >= task.classes:
            raise AttackError(
                f"backdoor's target must be below the number of classes ({task.classes}), got {self.target}"
            )

    def poison(self, task: Task, batch: Batch) -> Batch:
        images, labels = batch[IMAGES], batch[LABELS].clone()
        count = ceil(self.share * labels.shape[-1])  # the last axis: before it there may be one of micro-batches
        first = (slice(None),) * (labels.ndim - 1) + (slice(count),)
        poisoned = images.clone()
        poisoned[first] = stamped(images[first])
        labels[first] = self.target
        return {**batch, IMAGES: poisoned, LABELS: labels}


# Rows that somebody else, or the colluder itself, has sent before or sends now: copies that no norm gives away.


@dataclass(frozen=True)
class DelayedGradient(GradientAttack, needs_honest=False, counts=("delay",)):
    """send the own gradient of `delay` contributions ago"""

    delay: int = 50

    def begin(self, seed: Seed) -> Forge:
        past: dict[int, deque[Tensor]] = defaultdict(lambda: deque(maxlen=self.delay + 1))  # own rows, by member

        def forge(members: Sequence[int], own_BD: Tensor, _honest_HD: Tensor) -> Tensor:
            for member, own_D in zip(members, own_BD, strict=True):
                past[member].append(own_D)
            # The oldest there is, while the run is younger than the delay.
            return torch.stack([past[member][0] for member in members])

        return forge


@dataclass(frozen=True)
class Mimic(GradientAttack, counts=("warmup",)):
    """all copy the one honest peer that is farthest in the direction of most variance, found in `warmup` steps"""

    warmup: int = 1

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
