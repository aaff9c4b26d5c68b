"""Aggregates as they are handed out: rounded for the run's code, and judged number by number (SPEC A1, C4, T6)."""

import math

import numpy as np
import torch
from torch import Tensor

from troth.clip import kernels
from troth.clip.blocks import BLOCK, Code
from troth.clip.centered_clip import measure_center, residual_tolerance, slack
from troth.clip.exact import Floats, exact_norm
from troth.clip.on_device import in_triton

# P rows, D coordinates, B blocks, C coordinates of a chunk

CONVICT_ROUNDING = 1.25  # times the worst rounding, above which a juror convicts …
ACCUSE_ROUNDING = 1.5  # … and whoever looked at a leaf accuses: then jurors find it too
_CHUNK_NUMBERS = 1 << 16
OTHER_BITS = 2.0**-32  # relative: sums of another machine, far below any quantum


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
    rows_PD: Tensor, center_D: Tensor, norms: list[float], *, tau: float, code: Code, epsilon: float, doubt: float = 0.0
) -> float:
    """How far from where the rows pull it a number was rounded, at most, as a multiple of the worst that rounding does.

    `m = Σ w_i x_i / Σ w_i`, with weights at the aggregate, is where they pull it, but for weights that change within ε: each by
    at most `η_i = ε/max(norm_i − ε, τ)` of itself, if it is clipped within ε. What that can move a number is not held against it.
    Rounding moves it by half a quantum, and in a coordinate in which all rows are zero, not at all: any other number is a whole
    quantum away. `doubt`: the most that norms may be off, relative to themselves, and weights with them."""
    weights = [tau / max(norm, tau) for norm in norms]
    clipped = [norm * (1 + doubt) + epsilon > tau for norm in norms]
    turns = [
        epsilon / max(norm - epsilon, tau) + doubt if clips else 0.0 for norm, clips in zip(norms, clipped, strict=True)
    ]
    total = math.fsum(weights)
    share_P = np.array([weight / total for weight in weights])
    drift_P = share_P * np.array(turns)
    factors_B = 2 / (code.quanta_of_blocks(center_D) * (1 + math.fsum(drift_P)))
    if kernels.takes(rows_PD, center_D):
        from troth.clip import block_kernels

        rows, center = rows_PD.detach().numpy(), center_D.detach().numpy()
        return block_kernels.farthest_number(rows, center, share_P, drift_P, factors_B, OTHER_BITS)
    if rows_PD.is_cuda and center_D.is_cuda and (loops := in_triton("triton_blocks")) is not None:
        return float(loops.farthest_number(rows_PD, center_D, share_P, drift_P, factors_B, OTHER_BITS))
    return farthest_by_torch(rows_PD, center_D.to(rows_PD.device), share_P, drift_P, factors_B)


def farthest_by_torch(rows_PD: Tensor, center_D: Tensor, share_P: Floats, drift_P: Floats, factors_B: Floats) -> float:
    """The readable reference of `block_kernels.farthest_number`, with the same bits: rows are added up in their order."""
    width, farthest = BLOCK * max(1, _CHUNK_NUMBERS // BLOCK), 0.0
    for start in range(0, len(center_D), width):
        center_C = center_D[start : start + width].double()
        off_C, excused_C = torch.zeros_like(center_C), OTHER_BITS * center_C.abs()
        for row_D, share, drift in zip(rows_PD, share_P.tolist(), drift_P.tolist(), strict=True):
            away_C = row_D[start : start + width].double() - center_C
            off_C += share * away_C
            excused_C += drift * away_C.abs()
        factors_C = torch.from_numpy(factors_B[start // BLOCK :]).repeat_interleave(BLOCK)[: len(center_C)]
        farthest = max(farthest, float(((off_C.abs() - excused_C) * factors_C.to(center_C.device)).max()))
    return farthest
