"""Updates: each part is the clipped centre of what was committed, and no update goes far from honest gradients."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from troth.aggregation import judge_center
from troth.attacks import ATTACKS
from troth.crypto import PeerId
from troth.protocol.core.roles import gradient_seed
from troth.protocol.core.scales import lower_median, part_taus
from troth.protocol.core.state import Outcome
from troth.simulation.chaos.plan import HONEST, LAZY
from troth.simulation.chaos.world import World, forged
from troth.specs import parse_spec
from troth.training.work import Training

# P contributors, C honest contributors, D coordinates

_FARTHEST = 4.0  # usual lengths that an aggregate may be away from the contributors (SPEC V3)
_LEAST_SHARE = 0.05  # of a whole gradient's length, for parts that are nearly zero
_LONGEST = 2.0  # usual lengths that an update may have
_LOOKS_BACK = 64
_ROUNDING = 1e-3
MOMENTUM = 0.9  # of the optimizer of these worlds


def aggregates(world: World) -> list[str]:
    """Every part is the clipped centre of what contributors committed to: clipping bounds the harm of every step.

    Colluders that cover for each other pass, for their own parts alone, until they are audited (SPEC T7). `harm` bounds how
    far those parts may be off. What a lazy stranger committed to that liars let in is known to nobody here.
    """
    lazy = {peer for peer, number in world.numbers.items() if world.plan.strangers.get(number, (0, HONEST))[1] in LAZY}
    covers = {number: ATTACKS[parse_spec(attack)[0]].covers for number, attack in world.plan.attacks.items()}
    covering = {peer for peer, number in world.numbers.items() if covers.get(number)}
    broken = []
    for outcome in world.witness:
        if not outcome.record.updated or lazy & set(map(PeerId, outcome.record.contributors)):
            continue
        record, kept = outcome.record, outcome.state.audit_records[outcome.record.step]
        rows = []
        for peer in map(PeerId, record.contributors):
            gradient_D = world.right_gradient(outcome, peer)
            lies, seed = (peer, record.step) in world.forged, gradient_seed(kept.seed_randomness, peer)
            rows.append(forged(gradient_D, seed, world.plan.spikes) if lies else gradient_D)
        rows_PD = torch.stack(rows)
        for part, ((start, stop), tau) in enumerate(
            zip(pairwise(kept.bounds), part_taus(kept.tau, kept.bounds), strict=True)
        ):
            if kept.owners[part] in covering:
                continue
            center_D, part_PD = kept.aggregate_D[start:stop], rows_PD[:, start:stop]
            residual, tolerance = judge_center(part_PD, center_D, tau=tau)
            if residual > 2 * tolerance:
                broken.append(f"step {record.step}: the aggregate of part {part} is not the clipped centre")
    return broken


def harm(world: World) -> list[str]:
    """Every part is within reach of an honest contributor, and every update is about as long as honest gradients are.

    Medians over contributors lie between honest extremes where liars are fewer than half of them; with more, beyond the
    full guarantee, nobody can say what the model is worth.
    """
    broken: list[str] = []
    applied: list[float] = []
    for outcome in world.witness:
        honest = [peer for peer in map(PeerId, outcome.record.contributors) if peer in world.honest]
        moved_D = applied_gradient(outcome)
        if 2 * len(honest) > len(outcome.record.contributors):
            rows_CD = torch.stack([world.right_gradient(outcome, peer) for peer in honest]).double()
            found = [*_far_parts(outcome, rows_CD), *_too_long(outcome, rows_CD, moved_D, applied)]
            broken += [f"step {outcome.record.step}: {what}" for what in found]
        applied = [*applied, float(moved_D.norm())][-_LOOKS_BACK:] if outcome.record.updated else applied
    return broken


def applied_gradient(outcome: Outcome[Training]) -> Tensor:
    """Gradient that the optimizer was given, as its state shows it: whatever was clipped on the way, this moved the model."""
    before, after = outcome.state.audit_records[outcome.record.step].training, outcome.state.training
    return after.optimizer["momentum"].double() - MOMENTUM * before.optimizer["momentum"].double()


def _far_parts(outcome: Outcome[Training], rows_CD: Tensor) -> Iterator[str]:
    kept = outcome.state.audit_records[outcome.record.step]
    if not outcome.record.updated:
        return
    spans, whole = list(pairwise(kept.bounds)), float(rows_CD.norm(dim=1).max())
    for part, ((start, stop), tau) in enumerate(zip(spans, part_taus(kept.tau, kept.bounds), strict=True)):
        part_CD, share = rows_CD[:, start:stop], ((stop - start) / kept.bounds[-1]) ** 0.5
        nearest = float((part_CD - kept.aggregate_D[start:stop].double()).norm(dim=1).min())
        most = _FARTHEST * max(float(part_CD.norm(dim=1).max()), tau, _LEAST_SHARE * share * whole)
        if not nearest <= most * (1 + _ROUNDING):
            yield f"part {part} is {nearest:.3g} away from all honest contributors, at most {most:.3g}"


def _too_long(outcome: Outcome[Training], rows_CD: Tensor, moved_D: Tensor, applied: list[float]) -> Iterator[str]:
    if not outcome.record.updated:
        return
    usual = max(float(rows_CD.norm(dim=1).max()), outcome.record.tau, lower_median(applied) if applied else 0.0)
    length = float(moved_D.norm())
    if not length <= _LONGEST * usual * (1 + _ROUNDING):
        yield f"an update of length {length:.3g}, at most {_LONGEST * usual:.3g}"
