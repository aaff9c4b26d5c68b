"""CenteredClip, as published, and what its solution must satisfy (Karimireddy et al. 2021; Gorbunov et al. 2022).

The clipped centre `v` of rows `x_i` with radius `τ` solves

    Σ_i (x_i − v)·min(1, τ/‖x_i − v‖) = 0,

the minimum of a convex function: a liar's row, however long, pulls with a force of at most τ. The loop here is the
readable reference; `centered_clip_fast` finds the same point in a few reads of the matrix.
"""

import torch
from torch import Tensor

from troth.aggregation.checks import AggregationError, check_vectors

# P peers, D coordinates


def centered_clip_published(
    vectors_PD: Tensor, *, tau: float, iterations: int = 20, stop: float = 0.0, start_D: Tensor | None = None
) -> Tensor:
    """`v ← v + mean_i (x_i − v)·min(1, τ/‖x_i − v‖)`, from the coordinate median unless `start_D` is given.

    The paper's released settings are `iterations=500, stop=1e-6`: it ends when a step is no longer than `stop`. As
    published it computes norms in the rows' own format: float32 rows longer than 1.8e19 overflow and pull with 0.
    """
    check_vectors(vectors_PD)
    check_tau(tau)
    v_D = torch.median(vectors_PD, dim=0).values if start_D is None else start_D
    for _ in range(iterations):
        away_PD = vectors_PD - v_D
        scale_P = clip_weights(torch.linalg.vector_norm(away_PD, dim=1), tau)
        step_D = (away_PD * scale_P[:, None]).mean(dim=0)
        v_D = v_D + step_D
        if stop and torch.linalg.vector_norm(step_D) <= stop:
            break
    return v_D


def clip_weights(distance_P: Tensor, tau: float) -> Tensor:
    """`min(1, τ/distance)`: how much of each row's pull is left after clipping."""
    return (tau / distance_P).clamp(max=1.0)  # a distance of 0 gives inf, clamped to 1


def clip_residual(vectors_PD: Tensor, v_D: Tensor, *, tau: float) -> Tensor:
    """`Σ_i (x_i − v)·min(1, τ/‖x_i − v‖)` in float64: zero exactly at the clipped centre."""
    away_PD = vectors_PD.double() - v_D.double()
    return clip_weights(torch.linalg.vector_norm(away_PD, dim=1), tau) @ away_PD


def residual_tolerance(center_norm: float, clipped_norms: float, *, tau: float, peers: int) -> float:
    """The largest residual norm at which an aggregate still counts as right (DESIGN §3, V2 tolerance).

    `2⁻²¹·P·min(‖v‖, 2¹⁰·τ) + 2⁻⁴⁰·Σ min(‖x_i − v‖, τ)`, the sum given as `clipped_norms`. The first term is eight times
    what rounding `v` to float32 can cost, the second what float64 scalars can; owners solve to an eighth of it.
    """
    return 2.0**-21 * peers * min(center_norm, 2.0**10 * tau) + 2.0**-40 * clipped_norms


def check_tau(tau: float) -> None:
    if not (tau > 0 and tau < float("inf")):
        raise AggregationError(f"the clipping radius tau must be a positive finite number, got {tau}")
