"""The point with the smallest sum of distances to all vectors."""

import torch
from torch import Tensor

from troth.aggregation.checks import AggregationError, check_vectors
from troth.aggregation.median import median


def geometric_median(vectors_PD: Tensor, *, tolerance: float = 1e-10, iterations: int = 1000) -> Tensor:
    """`argmin_v Σ ‖x_i − v‖` by Weiszfeld's iteration, in float64, to convergence.

    Stops once a step is shorter than `tolerance` times the median distance. A vector that the iterate sits on is handled
    as Vardi and Zhang (2000) do: it pulls with weight one at most, instead of dividing by zero.
    """
    check_vectors(vectors_PD)
    if not tolerance > 0 or iterations < 1:
        raise AggregationError(f"tolerance must be positive and iterations at least 1, got {tolerance}, {iterations}")
    rows_PD = vectors_PD.double()
    v_D = median(rows_PD)  # not the mean, which one long row carries off
    for _ in range(iterations):
        away_PD = rows_PD - v_D
        distance_P = torch.linalg.vector_norm(away_PD, dim=1)
        scale = distance_P.median()  # nor a mean distance, for the same reason
        on_it_P = distance_P <= scale * 1e-15
        if bool(on_it_P.all()):
            break
        weight_P = torch.where(on_it_P, 0.0, 1.0 / torch.where(on_it_P, 1.0, distance_P))
        pull_D = weight_P @ away_PD
        # The vectors under v hold it back with a force of at most one each; v stays if nothing pulls harder.
        pull, held = torch.linalg.vector_norm(pull_D), on_it_P.sum()
        if pull <= held:
            break
        step_D = (1 - held / pull) * pull_D / weight_P.sum()
        v_D = v_D + step_D
        if torch.linalg.vector_norm(step_D) <= tolerance * scale:
            break
    return v_D.to(vectors_PD.dtype)
