"""Harm is bounded by the clipping: liars pull an aggregate no farther than so many radii as they are, whatever they do."""

from itertools import pairwise

import torch

from troth.crypto import PeerId
from troth.protocol.scales import part_taus
from troth.simulation.world import World

# P contributors, D coordinates
_UNSEEN = (
    2.5 * 10**0.5
)  # a report may be 2.5 radii long, and measures a vector of more than √10 times that in 2 of 10⁶ draws


def harm(world: World) -> list[str]:
    """The pull of the honest on the aggregate, clipped, is what the liars must hold against it."""
    broken = []
    for outcome in world.witness:
        record, kept = outcome.record, outcome.state.kept[outcome.record.step]
        honest = [peer for peer in map(PeerId, record.contributors) if peer in world.honest]
        if not honest:
            continue
        rows_PD = torch.stack([world.right_gradient(outcome, peer) for peer in honest]).double()
        liars = len(record.contributors) - len(honest)
        for part, ((start, stop), tau) in enumerate(
            zip(pairwise(kept.bounds), part_taus(kept.tau, kept.bounds), strict=True)
        ):
            away_PD = rows_PD[:, start:stop] - kept.aggregate_D[start:stop].double()
            norms_P = torch.linalg.vector_norm(away_PD, dim=1).clamp(min=1e-300)
            pull_D = (away_PD * (tau / norms_P).clamp(max=1.0)[:, None]).sum(dim=0)
            if float(pull_D.norm()) > _UNSEEN * tau * liars + 1e-5 * tau * len(honest):
                broken.append(f"step {record.step}: part {part} is pulled by more than {liars} liars can")
    return broken
