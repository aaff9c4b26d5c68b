"""Aggregates as they are handed out: rounded for the run's code, and judged number by number (SPEC A1, C4, T6)."""

import math

import torch
from torch import Tensor

from troth.clip.blocks import Code
from troth.clip.centered_clip import measure_center, residual_tolerance, slack
from troth.clip.exact import exact_norm

# P rows, D coordinates, C coordinates of a chunk

CONVICT_ROUNDING = 1.25  # times the worst rounding, above which a juror convicts
_CHUNK_NUMBERS = 1 << 18
_OTHER_BITS = 2.0**-32  # relative: sums of another machine, far below any quantum


def acquits(rows_PD: Tensor, center_D: Tensor, *, tau: float, code: Code, share: float = 1.0) -> bool:
    """Tell whether an aggregate is right, within a share of the tolerance.

    As a whole; and where it was rounded to a code, in each of its numbers: a whole vector's rounding, all of it in the
    coordinates that hardly any gradient touches, would steer a model step by step."""
    residual, norms = measure_center(rows_PD, center_D, tau=tau)
    norm, size, limit = exact_norm(center_D), len(center_D), 1.0 + share * (CONVICT_ROUNDING - 1.0)
    if not code.rounds_centers:
        return residual <= share * residual_tolerance(norm, norms, tau=tau, size=size)
    rounding = limit * code.rounding(center_D)
    if residual > residual_tolerance(norm, norms, tau=tau, size=size, rounding=rounding):
        return False
    epsilon = slack(norm, size, rounding)
    return farthest_number(rows_PD, center_D, norms, tau=tau, code=code, epsilon=epsilon) <= limit


def farthest_number(
    rows_PD: Tensor, center_D: Tensor, norms: list[float], *, tau: float, code: Code, epsilon: float
) -> float:
    """How far from where the rows pull it a number was rounded, at most, as a multiple of the worst that rounding does.

    `m = Σ w_i x_i / Σ w_i`, with weights at the aggregate, is where they pull it, but for weights that change within ε: each by
    at most `η_i = ε/max(norm_i − ε, τ)` of itself, if it is clipped within ε. What that can move a number is not held against it.
    Rounding moves it by half a quantum, and in a coordinate in which all rows are zero, not at all: any other number is a whole
    quantum away."""
    quanta_D = code.quanta(center_D)
    assert quanta_D is not None
    weights = [tau / max(norm, tau) for norm in norms]
    turns = [epsilon / max(norm - epsilon, tau) if norm + epsilon > tau else 0.0 for norm in norms]
    device, total = rows_PD.device, math.fsum(weights)
    share_P = torch.tensor([weight / total for weight in weights], dtype=torch.float64, device=device)
    drift_P = share_P * torch.tensor(turns, dtype=torch.float64, device=device)
    drift = float(drift_P.sum())
    width, farthest = max(1, _CHUNK_NUMBERS // len(norms)), 0.0
    for start in range(0, len(center_D), width):
        chunk = slice(start, start + width)
        center_C = center_D[chunk].to(device).double()
        away_PC = rows_PD[:, chunk].double() - center_C
        off_C = (share_P[:, None] * away_PC).sum(0).abs()
        excused_C = (drift_P[:, None] * away_PC.abs()).sum(0) + _OTHER_BITS * center_C.abs()
        half_C = torch.from_numpy(quanta_D[chunk]).to(device) / 2 * (1 + drift)
        farthest = max(farthest, float(((off_C - excused_C) / half_C).max()))
    return farthest
