"""CenteredClip as published, and the equation of its solution (Karimireddy et al. 2021; Gorbunov et al. 2022).

The clipped centre `v` of rows `x_i` with radius `τ` solves

    Σ_i (x_i − v)·min(1, τ/‖x_i − v‖) = 0,

the minimum of a convex function: a liar's row, however long, pulls with a force of at most τ. The loop here is the
readable reference; `centered_clip_fast` finds the same point in a few reads of the matrix.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from troth import kernels
from troth.aggregation.checks import AggregationError, check_vectors
from troth.aggregation.exact import Floats, exact_norm, tree_sum
from troth.kernels import on_device

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
    return torch.from_numpy(_pulls(vectors_PD, v_D, tau)[0])


def judge_center(vectors_PD: Tensor, v_D: Tensor, *, tau: float) -> tuple[float, float]:
    """Give the length of the residual and its tolerance: the same two numbers on every machine (SPEC T6)."""
    if vectors_PD.device.type != "cpu":
        away_D, norms = on_device.pulls(vectors_PD, v_D.to(vectors_PD.device), tau)
        residual = math.sqrt(float(on_device.tree_sum(away_D.square_())))
    elif kernels.compiled(vectors_PD.numel()) and kernels.fits(vectors_PD, v_D):
        residual, norms = kernels.pulls(vectors_PD.detach().numpy(), v_D.detach().numpy(), tau)
    else:
        residual_D, norm_P = _pulls(vectors_PD, v_D, tau)
        residual, norms = float(np.sqrt(tree_sum(np.square(residual_D)))), norm_P.tolist()
    return residual, residual_tolerance(exact_norm(v_D), norms, tau=tau, size=len(v_D))


def _pulls(vectors_PD: Tensor, v_D: Tensor, tau: float) -> tuple[Floats, Floats]:
    """The residual and the distances, row by row in a fixed order.

    Their own rounding is below 2⁻⁴⁵ of the clipped distances, and so within 2⁻⁴⁰. A library's norm rounds worse: with it,
    two liars of opposite signs and 10⁵ equal coordinates had an honest owner convicted.
    """
    center_D = v_D.detach().cpu().double().numpy()
    residual_D, norms = np.zeros(len(center_D)), []
    for row_D in vectors_PD.detach().cpu():
        away_D = row_D.double().numpy() - center_D
        norms.append(float(np.sqrt(tree_sum(away_D * away_D))))
        away_D *= tau / max(norms[-1], tau)
        residual_D += away_D
    return residual_D, np.array(norms)


def residual_tolerance(center_norm: float, norms: Sequence[float], *, tau: float, size: int) -> float:
    """The largest residual norm at which an aggregate still counts as right (SPEC V2).

    `Σ_i min(2τ, ε·τ/max(norm_i − ε, τ)) + 2⁻⁴⁰·Σ_i min(norm_i, τ)` with `ε = 2⁻²¹·‖v‖ + √d·2⁻¹²⁵` and
    `norm_i = ‖x_i − v‖`. The first sum bounds the change of the pulls when `v` moves by ε, which is eight times as far as
    rounding to float32 moves it, and twice as far as flushing subnormals does; the second is the loss of float64 scalars. All
    numbers are announced, sums round once and operations are single: the same bits everywhere.
    """
    epsilon = 2.0**-21 * center_norm + math.sqrt(size) * 2.0**-125
    moved = math.fsum(min(2 * tau, epsilon * tau / max(norm - epsilon, tau)) for norm in norms)
    return moved + 2.0**-40 * math.fsum(min(norm, tau) for norm in norms)


def check_tau(tau: float) -> None:
    if not (tau > 0 and tau < float("inf")):
        raise AggregationError(f"the clipping radius tau must be a positive finite number, got {tau}")
