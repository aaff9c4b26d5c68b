"""What moved the model is the clipped centre of what contributors committed to: clipping bounds the harm of every step."""

from itertools import pairwise

import torch

from troth.aggregation import judge_center
from troth.crypto import PeerId
from troth.protocol.core.scales import part_taus
from troth.simulation.chaos.world import FORGED, World
from troth.specs import parse_spec

# P contributors, D coordinates

COVERING = frozenset({"covered-aggregate", "covered-once", "adapt", "strategist"})


def aggregates(world: World) -> list[str]:
    """Colluders who cover for each other pass until they are audited (SPEC T7): of their own parts, and no others.

    How far those may be off is what `harm` bounds.
    """
    covering = {peer for peer, number in world.numbers.items() if _covers(world.plan.attacks.get(number, ""))}
    broken = []
    for outcome in world.witness:
        if not outcome.record.updated:
            continue
        record, kept = outcome.record, outcome.state.audit_records[outcome.record.step]
        rows = []
        for peer in map(PeerId, record.contributors):
            gradient_D = world.right_gradient(outcome, peer)
            rows.append(gradient_D * FORGED if (peer, record.step) in world.forged else gradient_D)
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


def _covers(attack: str) -> bool:
    return parse_spec(attack)[0] in COVERING
