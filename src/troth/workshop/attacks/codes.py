"""Lies that codes make room for: rounding that leans one way, aggregates that are bent within theirs, exponents that are larger
than they have to be, and numbers that make them so (SPEC C4)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.clip.blocks import BLOCK, INT8, INT16, Blocks, Code
from troth.clip.centered_clip import measure_center, residual_tolerance, slack
from troth.clip.exact import exact_norm
from troth.clip.fast import centered_clip
from troth.clip.rounded_center import CONVICT_ROUNDING, acquits
from troth.crypto import Seed, Slot, derive, merkle_tree, stream
from troth.protocol.core.channel import AttemptView, Exchange, Forward, Scatter
from troth.protocol.core.parts import ProvenPart, commit_parts, rows_of
from troth.protocol.core.roles import draw_roles
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Center, Commit, Message, Phase
from troth.protocol.wire.primitives import UNSHARED
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

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        attack = self._collusion.attack
        hides = isinstance(attack, Bend) and attack.hide and self._active(slot.step)
        if hides and isinstance(blobs, Forward) and slot.phase == Phase.REPORT:
            shown = {
                about: ([one for one in to if one in self._colluders], leaf)
                for about, (to, leaf) in blobs.parts.items()
            }
            blobs = replace(blobs, parts=shown)
        received = await super().exchange(slot, blobs, view)
        if isinstance(blobs, Forward) and slot.phase == Phase.CLIP:  # rows that a relay carried
            for (part, contributor), proven in received.items():
                row_D = rows_of([proven], code=self._code)[0]
                self._arrived = {**self._arrived, part: {**self._arrived.get(part, {}), contributor: row_D}}
        return received

    @property
    def _rows(self) -> dict[int, list[Tensor]]:
        """Rows of the contributors that are still there: with others in it a bend would be too wide to pass."""
        return {part: [rows[one] for one in rows if one in self._members] for part, rows in self._arrived.items()}

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


@dataclass(frozen=True)
class Bend(GradientAttack, behaves=BendingOwner, needs_code=True, shares=("share",)):
    """as owner, round the aggregate to a trigger, up to `share` of what V2 lets pass; each=true: and T6; hide=true: unseen"""

    target: int = 0  # class that the trigger stands for
    share: float = 0.6  # of the tolerance: sixteen projections measure more than 1.67 times too much once in 6,000
    each: bool = False
    hide: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        Backdoor(self.target)

    def check(self, task: Task, *, honest: int, colluders: int) -> None:
        if has_images(task.batch(stream(0, "bend"))):
            Backdoor(self.target).check(task, honest=honest, colluders=colluders)


# Larger steps of the code, and with them larger tolerances. B blocks, C codes of a block


@dataclass(frozen=True)
class _Coarse(Blocks):
    """The same blocks with exponents larger than they have to be: numbers that they can hold, not their bytes."""

    more: int = 0

    def exponents(self, numbers_D: NDArray[np.float32] | Tensor) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.minimum(super().exponents(numbers_D) + self.more, self.highest)
        return found

    def round(self, numbers_D: Tensor, key: bytes = b"") -> Tensor:
        # Twice: the first may carry a block's largest number to the next power of two.
        return torch.from_numpy(self.rounded(self.rounded(numbers_D.detach().numpy())))


def coarse(more: int) -> Code:
    """The code int8 with aggregates whose steps are 2^`more` times as large."""
    return Code(INT8, _Coarse("int16", 16, more), BLOCK)


def rewritten(view: memoryview, form: Blocks, more: int) -> bytes:
    """Blocks with exponents that are by so much larger, and codes that are as much smaller, rounded down."""
    width = form.bits // 8
    packed = np.zeros((-(-len(view) // (1 + width * BLOCK)), 1 + width * BLOCK), np.uint8)
    packed.reshape(-1)[: len(view)] = np.frombuffer(view, np.uint8)
    packed[:, 0] = np.minimum(packed[:, 0].astype(np.int64) + more, form.highest)
    codes_BC = np.ascontiguousarray(packed[:, 1:]).view(f"<i{width}") >> more
    packed[:, 1:] = codes_BC.view(np.uint8)
    return packed.tobytes()[: len(view)]


def spiked(bent_D: Tensor, center_D: Tensor, more: int) -> Tensor:
    """An aggregate in whose blocks the largest number is just so large that they need exponents by so much larger."""
    spiked_D = bent_D.clone()
    for start, quantum in zip(range(0, len(center_D), BLOCK), INT16.quanta_of_blocks(center_D).tolist(), strict=True):
        place = start + int(center_D[start : start + BLOCK].abs().argmax())
        spiked_D[place] = math.copysign(math.ldexp(quantum, more + INT16.bits - 2), float(center_D[place]))
    return spiked_D


class CoarseOwner(BendingOwner):
    """As owner or contributor, has blocks say larger exponents than they need, or need larger ones."""

    _parts_instead: Mapping[int, ProvenPart] = MappingProxyType({})

    def _wrong(self, slot: Slot, part: int) -> Tensor:
        rows_PD, bounds, attack = torch.stack(self._rows[part]), self._bounds(), self._collusion.attack
        wanted_D = self._wanted(slot.step)[bounds[part] : bounds[part + 1]]
        tau, code = self._tau(rows_PD.shape[1]), coarse(attack.more)
        bent_D = bent(rows_PD, wanted_D, tau=tau, code=code, share=attack.share, each=False)
        return bent_D if attack.what == "form" else spiked(bent_D, centered_clip(rows_PD, tau=tau), attack.more)

    def _forge(self, slot: Slot, center: Center) -> Center:
        attack = self._collusion.attack
        if attack.what == "row":
            return center
        if attack.what == "spike":
            return super()._forge(slot, center)
        wrong_D = self._wrong(slot, center.part)
        forged = Blob(rewritten(INT16.pack(wrong_D), INT16, attack.more))
        self._forged = {**self._forged, center.part: forged}
        return Center(center.part, forged.digest, exact_norm(wrong_D), INT16.rounding(forged.view))

    def _instead(self, slot: Slot, message: Message) -> Message:
        if isinstance(message, Commit) and message.root is not None and self._collusion.attack.what == "row":
            return msgspec.structs.replace(message, root=self._another_root(slot))
        return super()._instead(slot, message)

    def _another_root(self, slot: Slot) -> bytes:
        """Commit to a gradient of any batch, each part of it in another form."""
        assert self._collusion.state is not None
        assert self._collusion.problem is not None
        state, problem, more = self._collusion.state(), self._collusion.problem, self._collusion.attack.more
        bounds = draw_roles(self._run, state.roster, state.randomness, state.pending_audits).bounds
        seed = Seed(derive(self._run.id, "coarse", slot.step, self._me))
        gradient_D = problem.gradient(state.training.parameters_D, problem.batch(seed))[1]
        right = commit_parts(gradient_D, bounds, UNSHARED, self._code, seed).proven_parts
        blobs = [Blob(rewritten(proven.blob.view, INT8, more)) for proven in right]
        spans = enumerate(pairwise(bounds))
        root, paths = merkle_tree([UNSHARED.leaf(p, b - a, blobs[p].digest, INT8) for p, (a, b) in spans])
        self._parts_instead = dict(enumerate(map(ProvenPart, blobs, paths)))
        return root

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        if isinstance(blobs, Scatter) and self._parts_instead and self._active(slot.step):
            parts = {part: (owner, self._parts_instead[part]) for part, (owner, _) in blobs.parts.items()}
            blobs = replace(blobs, parts=parts)
        return await super().exchange(slot, blobs, view)


@dataclass(frozen=True)
class Coarse(
    GradientAttack,
    behaves=CoarseOwner,
    needs_code=True,
    shares=("share",),
    counts=("more",),
    choices={"what": ("form", "spike", "row")},
):
    """bend with steps 2^`more` times too large: exponents not the least (what=form, or row), or large numbers (what=spike)"""

    target: int = 0  # class that the trigger stands for
    share: float = 0.6  # of what would be the tolerance
    more: int = 4
    what: str = "form"

    def check(self, task: Task, *, honest: int, colluders: int) -> None:
        Bend(self.target).check(task, honest=honest, colluders=colluders)


@dataclass(frozen=True)
class Spike(GradientAttack, needs_code=True, positive=("scale",), counts=("every",)):
    """put a number `scale` times as long as the gradient into every `every`-th block: aggregates are to be rounded coarsely"""

    scale: float = 1000.0
    every: int = 1

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        sent_BD, first = own_BD.clone(), slice(None, None, BLOCK * self.every)
        length_B = self.scale * torch.linalg.vector_norm(own_BD, dim=1)
        sent_BD[:, first] = length_B[:, None] * torch.where(honest_HD.mean(dim=0)[first] < 0, 1.0, -1.0)
        return sent_BD
