"""What liars can know beforehand: the centre of rows that they try, and whose work is audited in a step."""

from collections.abc import Set
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from troth.aggregation import centered_clip
from troth.crypto import PeerId
from troth.protocol.core.parts import part_bounds
from troth.protocol.core.roles import draw_roles
from troth.protocol.core.run import Run
from troth.protocol.core.scales import part_taus
from troth.protocol.core.state import State

# P contributors, D coordinates


def foreseen_center(rows_PD: Tensor, tau: float) -> Tensor:
    """The clipped centre, part by part with `τ√(d/D)`, one part for each contributor (SPEC A1).

    A part that is not finite counts as zeros (SPEC C3): it draws the centre to zero until its sender is banned.
    """
    bounds = part_bounds(rows_PD.shape[1], len(rows_PD))
    spans = zip(pairwise(bounds), part_taus(tau, bounds), strict=True)
    return torch.cat([centered_clip(_as_read(rows_PD[:, start:stop]), tau=radius) for (start, stop), radius in spans])


def watched(run: Run, state: State[Any], colluders: Set[PeerId]) -> bool:
    """Whether an honest member audits a colluder in the step that begins with this state: roles are public."""
    audits = draw_roles(run, state.roster, state.randomness, state.pending_audits).audits
    targets = {audit.target for auditor, theirs in audits.items() if auditor not in colluders for audit in theirs}
    return bool(targets & colluders)


def _as_read(part_PD: Tensor) -> Tensor:
    finite_P = torch.isfinite(part_PD).all(dim=1)
    return torch.where(finite_P[:, None], part_PD, torch.zeros_like(part_PD))
