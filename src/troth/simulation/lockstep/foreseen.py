"""What the protocol would make of rows: for liars who try theirs before they send them."""

from itertools import pairwise

import torch
from torch import Tensor

from troth.aggregation import centered_clip
from troth.protocol.core.parts import part_bounds
from troth.protocol.core.scales import part_taus

# P contributors, D coordinates


def foreseen_center(rows_PD: Tensor, tau: float) -> Tensor:
    """The clipped centre, part by part with `τ√(d/D)`, one part for each contributor (SPEC A1).

    A part that is not finite counts as zeros (SPEC C3): it draws the centre to zero until its sender is banned.
    """
    bounds = part_bounds(rows_PD.shape[1], len(rows_PD))
    spans = zip(pairwise(bounds), part_taus(tau, bounds), strict=True)
    return torch.cat([centered_clip(_as_read(rows_PD[:, start:stop]), tau=radius) for (start, stop), radius in spans])


def _as_read(part_PD: Tensor) -> Tensor:
    finite_P = torch.isfinite(part_PD).all(dim=1)
    return torch.where(finite_P[:, None], part_PD, torch.zeros_like(part_PD))
