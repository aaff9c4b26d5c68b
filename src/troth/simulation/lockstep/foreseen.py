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

    Rows that are not finite are left out: their senders are gone before anything is aggregated.
    """
    finite_P = torch.isfinite(rows_PD).all(dim=1)
    if not bool(finite_P.any()):
        return torch.zeros_like(rows_PD[0])
    bounds, kept_PD = part_bounds(rows_PD.shape[1], len(rows_PD)), rows_PD[finite_P]
    spans = zip(pairwise(bounds), part_taus(tau, bounds), strict=True)
    return torch.cat([centered_clip(kept_PD[:, start:stop], tau=radius) for (start, stop), radius in spans])
