"""RFA: the geometric median by a few smoothed Weiszfeld steps (Pillutla, Kakade and Harchaoui 2019)."""

import torch
from torch import Tensor

from troth.aggregation.checks import AggregationError, check_vectors

# P peers, D coordinates


def rfa(vectors_PD: Tensor, *, steps: int = 8, smoothing: float = 0.1) -> Tensor:
    """`z ← Σ w_i x_i / Σ w_i` with `w_i = 1/max(smoothing, ‖x_i − z‖)`, `steps` times from `z = 0`, in float64.

    The limit withstands fewer than P/2 liars; a fixed number of steps from zero is nearer to zero than the limit, the more
    so the longer the liars' rows are. `smoothing` has the unit of the rows.
    """
    check_vectors(vectors_PD)
    if steps < 1 or not smoothing > 0:
        raise AggregationError(f"steps must be at least 1 and smoothing positive, got {steps} and {smoothing}")
    rows_PD = vectors_PD.double()
    z_D = torch.zeros_like(rows_PD[0])
    for _ in range(steps):
        weight_P = 1 / torch.linalg.vector_norm(rows_PD - z_D, dim=1).clamp(min=smoothing)
        z_D = (weight_P / weight_P.sum()) @ rows_PD
    return z_D.to(vectors_PD.dtype)
