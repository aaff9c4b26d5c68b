"""Lies that codes make room for: rounding that leans one way, aggregates that are bent within theirs, or written in another form
(SPEC C4)."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from troth.clip.blocks import BLOCK, INT8, INT16, Blocks, Code
from troth.clip.centered_clip import measure_center, residual_tolerance, slack
from troth.clip.exact import exact_norm
from troth.clip.fast import centered_clip
from troth.clip.rounded_center import CONVICT_ROUNDING, acquits
from troth.crypto import Seed, Slot, derive, stream
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Center
from troth.training import Problem, Task
from troth.training.metrics import has_images
from troth.training.optimizers import AdamW
from troth.training.work import Training
from troth.workshop.attacks.base import GradientAttack
from troth.workshop.attacks.gradient_lies import Backdoor, fixed_direction
from troth.workshop.attacks.roles import ShiftingOwner

# B colluders, H honest peers, P contributors, D coordinates

_TRIES, _LESS = 8, 0.9


@dataclass(frozen=True)
class Lean(GradientAttack, needs_code=True):
    """round the own gradient by less than a quantum in each number, always against the honest mean, not by public numbers"""

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        up_D = honest_HD.mean(dim=0) < 0
        return torch.stack([leaning(own_D, up_D) for own_D in own_BD])


def leaning(own_D: Tensor, up_D: Tensor) -> Tensor:
    """A gradient as int8 holds it, each number rounded up or down: rounding it once more leaves it as it is."""
    quanta_D = torch.from_numpy(INT8.quanta(own_D))
    in_quanta_D = own_D.double() / quanta_D
    leaning_D: Tensor = (torch.where(up_D, in_quanta_D.ceil(), in_quanta_D.floor()) * quanta_D).to(own_D.dtype)
    return leaning_D


class BendingOwner(ShiftingOwner):
    """As owner, rounds its aggregate towards a trigger, as far as checks let pass."""

    def _wrong(self, slot: Slot, part: int) -> Tensor:
        rows_PD, bounds, attack = torch.stack(self._rows[part]), self._bounds(), self._collusion.attack
        wanted_D = self._wanted(slot.step)[bounds[part] : bounds[part + 1]]
        tau = self._tau(rows_PD.shape[1])
        return bent(rows_PD, wanted_D, tau=tau, code=self._code, share=attack.share, each=attack.each)

    def _wanted(self, step: int) -> Tensor:
        """The direction for this step, which one of the colluders works out for all."""
        known = self._collusion.board.get("wanted")
        if known is None or known[0] != step:
            known = self._collusion.board["wanted"] = step, self._direction(step)
        return known[1]

    def _direction(self, step: int) -> Tensor:
        """What makes the model obey a trigger the fastest for its length; without images, a fixed direction."""
        collusion, seed = self._collusion, Seed(derive(self._run.id, "bend", step))
        problem = collusion.problem
        if problem is None or collusion.state is None or not has_images(batch := problem.batch(seed)):
            return fixed_direction(Seed(bytes(self._run.id)), "bend", torch.zeros(1, self._run.parameters.size))
        training: Training = collusion.state().training
        poisoned = Backdoor(collusion.attack.target, share=1.0).poison(problem.task, batch)
        return problem.gradient(training.parameters_D, poisoned)[1] * levers(training, problem)


def levers(training: Training, problem: Problem) -> Tensor:
    """How far the optimizer moves each weight for what the aggregate has there, up to a common factor: 1 over Adam's denominators
    with their floors (SPEC U7), or 1."""
    square_D = training.optimizer.get("square")
    if square_D is None or not square_D.any():
        return torch.ones_like(training.parameters_D)
    spread_D, whole = square_D.sqrt(), _rms(square_D)
    for tensor in problem.layout.slices.values():
        spread_D[tensor].clamp_(min=max(AdamW.floor * _rms(square_D[tensor]), AdamW.model_floor * whole))
    return 1 / spread_D


def _rms(square_D: Tensor) -> float:
    return math.sqrt(float(square_D.double().mean()))


def bent(rows_PD: Tensor, wanted_D: Tensor, *, tau: float, code: Code, share: float, each: bool) -> Tensor:
    """The clipped centre, rounded as far in this direction as leaves the residual within a share of V2's tolerance; with `each`,
    no number farther than T6 lets pass."""
    center_D = centered_clip(rows_PD, tau=tau)
    right_D = code.round_center(center_D)
    reach_D = (
        wanted_D.double() / max(float(torch.linalg.vector_norm(wanted_D.double())), 1e-300) * code.rounding(right_D)
    )
    if each:
        reach_D = wanted_D.sign().double() * allowances(rows_PD, right_D, tau=tau, code=code)

    def rounded(strength: float) -> Tensor:
        aim_D = center_D.double() + CONVICT_ROUNDING * strength * reach_D
        return code.round_center((_farthest(center_D, aim_D) if each else aim_D).to(center_D.dtype))

    def measured(bent_D: Tensor) -> float:
        """Residual over tolerance."""
        residual, norms = measure_center(rows_PD, bent_D, tau=tau)
        rounding = CONVICT_ROUNDING * code.rounding(bent_D)
        return residual / residual_tolerance(exact_norm(bent_D), norms, tau=tau, size=len(bent_D), rounding=rounding)

    # Rounding has no direction, and so what it takes and what the bend takes add up as squares.
    strength = 1.0 if each else math.sqrt(max(0.0, share**2 - measured(right_D) ** 2))
    for _ in range(_TRIES):
        bent_D = rounded(strength)
        if measured(bent_D) <= share and (not each or acquits(rows_PD, bent_D, tau=tau, code=code)):
            return bent_D
        strength *= _LESS
    return right_D


def allowances(rows_PD: Tensor, right_D: Tensor, *, tau: float, code: Code) -> Tensor:
    """How far each number may be from where the rows pull it, over the share by which worst rounding is exceeded (SPEC T6)."""
    _, norms = measure_center(rows_PD, right_D, tau=tau)
    epsilon = slack(exact_norm(right_D), len(right_D), CONVICT_ROUNDING * code.rounding(right_D))
    norm_P = torch.tensor(norms, dtype=torch.float64)
    weight_P = tau / norm_P.clamp(min=tau)
    turn_P = torch.where(norm_P + epsilon > tau, epsilon / (norm_P - epsilon).clamp(min=tau), 0.0)
    drift_P = weight_P / weight_P.sum() * turn_P
    excused_D = (drift_P[:, None] * (rows_PD.double() - right_D.double()).abs()).sum(dim=0)
    return torch.from_numpy(INT16.quanta(right_D)) / 2 * (1 + float(drift_P.sum())) + excused_D / CONVICT_ROUNDING


def _farthest(center_D: Tensor, aim_D: Tensor) -> Tensor:
    """The last codes before these aims, or the nearest to the centre where there are none."""
    quanta_D, up_D = torch.from_numpy(INT16.quanta(center_D)), aim_D > center_D
    nearest_D, aimed_D = (center_D.double() / quanta_D).round(), aim_D / quanta_D
    codes_D = torch.where(up_D, aimed_D.floor().maximum(nearest_D), aimed_D.ceil().minimum(nearest_D))
    return codes_D * quanta_D


class CoarseOwner(ShiftingOwner):
    """As owner, hands out its aggregate in another form: with larger exponents than it needs, and rounded to these."""

    def _forge(self, slot: Slot, center: Center) -> Center:
        rows_PD, form = torch.stack(self._rows[center.part]), self._code.centers
        assert isinstance(form, Blocks)
        right_D = self._code.round_center(centered_clip(rows_PD, tau=self._tau(rows_PD.shape[1])))
        coarse_D, raw = coarser(right_D, form, self._collusion.attack.by)
        forged = Blob(raw)
        self._forged = {**self._forged, center.part: forged}
        return Center(center.part, forged.digest, exact_norm(coarse_D), form.rounding(forged.view))


def coarser(numbers_D: Tensor, form: Blocks, by: int) -> tuple[Tensor, bytes]:
    """Numbers as blocks hold them with exponents that are larger by so many, and the bytes, which are malformed (SPEC C4)."""
    quanta_D, exponent_B = form.quanta(numbers_D) * 2**by, form.exponents(numbers_D) + by
    codes_D = np.rint(numbers_D.numpy() / quanta_D).astype(f"<i{form.bits // 8}")
    blocks = zip(exponent_B.tolist(), range(0, len(codes_D), BLOCK), strict=True)
    raw = b"".join(bytes([exponent]) + codes_D[start : start + BLOCK].tobytes() for exponent, start in blocks)
    return torch.from_numpy((codes_D * quanta_D).astype(np.float32)), raw


@dataclass(frozen=True)
class Coarse(GradientAttack, behaves=CoarseOwner, needs_code=True, counts=("by",)):
    """as owner, write the aggregate with exponents that are larger by `by`, and so choose its own rounding"""

    by: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by >= INT16.bits:
            raise ValueError(f"by must be from 1 to {INT16.bits - 1}, got {self.by}: a code has no more bits to lose")


@dataclass(frozen=True)
class Bend(GradientAttack, behaves=BendingOwner, needs_code=True, shares=("share",)):
    """as owner, round the aggregate towards a trigger, up to `share` of what V2 lets pass; each=true: and T6, in each number"""

    target: int = 0  # class that the trigger stands for
    share: float = 0.6  # of the tolerance: sixteen projections measure more than 1.67 times too much once in 6,000
    each: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        Backdoor(self.target)

    def check(self, task: Task, *, honest: int, colluders: int) -> None:
        if has_images(task.batch(stream(0, "bend"))):
            Backdoor(self.target).check(task, honest=honest, colluders=colluders)
