"""Lies so small that rounding or other hardware might explain them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

import msgspec
import torch
from torch import Tensor

from troth.attacks.colluder import ColludingChannel
from troth.attacks.gradient.base import Foresee, Forge, GradientAttack, Scene, WatchingForge
from troth.crypto import Seed, tagged_hash
from troth.protocol.core.parts import part_bounds
from troth.protocol.step.deviation import CONVICT, LEAST_SHARE
from troth.protocol.wire.messages import Commit, Message

# B colluders, H honest peers, P contributors (colluders, then honest peers), D coordinates, d of them in a part


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
class Hide(
    GradientAttack,
    positive=(
        "deviation",
        "share",
    ),
):
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
