"""CAF, the covariance-bound agnostic filter (Allouah, Guerraoui and Stephan 2025)."""

import torch
from torch import Tensor

from troth.aggregation.checks import AggregationError, check_byzantine, check_vectors
from troth.aggregation.distances import pairwise_distances

# P peers, D coordinates


def caf(vectors_PD: Tensor, *, byzantine: int) -> Tensor:
    """Weigh rows down along the direction in which they vary most, and give the mean at which they varied least.

    Weights `c` begin at 1. While `Σ c > P − 2·byzantine`: `μ` and `Σ` are the weighted mean and covariance, `v` the top
    eigenvector of `Σ`; then `c_i ← c_i·(1 − ⟨x_i − μ, v⟩²/max_j ⟨x_j − μ, v⟩²)`. The result is the `μ` with the smallest top
    eigenvalue. Tolerates `2·byzantine < P`, and needs no bound of the covariance. Eigenvectors are exact, from a P×P matrix.
    """
    check_vectors(vectors_PD)
    peers = len(vectors_PD)
    check_byzantine(byzantine, peers, (peers - 1) // 2, "caf")
    gram_PP = _gram(vectors_PD)
    weight_P = torch.ones(peers, dtype=torch.float64)
    best_P, least = weight_P / peers, float("inf")
    while float(weight_P.sum()) > peers - 2 * byzantine:
        share_P = weight_P / weight_P.sum()
        variance, along_P = _top_direction(gram_PP, share_P)
        if variance < least:
            best_P, least = share_P, variance
        squares_P = along_P.square()
        if not float(squares_P.max()) > 0:
            break  # all rows that count are equal
        weight_P = weight_P * (1 - squares_P / squares_P.max())
    counted = best_P > 0
    rows_PD = vectors_PD[counted.to(vectors_PD.device)]
    return (best_P[counted].to(vectors_PD.device) @ rows_PD.double()).to(vectors_PD.dtype)


def _top_direction(gram_PP: Tensor, share_P: Tensor) -> tuple[float, Tensor]:
    """The largest variance of the weighted rows in any direction, and how far every row is from the mean along it.

    Rows without weight are left out of all sums, and count as lying on the mean: theirs would drown the others'.
    """
    counted = share_P > 0
    gram_KK, share_K = gram_PP[counted][:, counted], share_P[counted]
    to_mean_K = gram_KK @ share_K
    centred_KK = gram_KK - to_mean_K[:, None] - to_mean_K[None, :] + share_K @ to_mean_K
    root_K = share_K.sqrt()
    variance_K, direction_KK = torch.linalg.eigh(root_K[:, None] * centred_KK * root_K[None, :])
    variance = float(variance_K[-1])
    along_P = torch.zeros_like(share_P)
    if variance > 0:
        along_P[counted] = centred_KK @ (root_K * direction_KK[:, -1]) / variance**0.5
    return variance, along_P


def _gram(vectors_PD: Tensor) -> Tensor:
    """Inner products around the most central row: around zero or the mean, long rows would swallow the digits of the rest."""
    center = int(pairwise_distances(vectors_PD).median(dim=1).values.argmin())
    away_PD = vectors_PD.double() - vectors_PD[center].double()
    gram_PP = (away_PD @ away_PD.T).cpu()
    if not bool(gram_PP.isfinite().all()):
        raise AggregationError("caf: there are rows too long to be squared: scale the vectors down")
    return gram_PP
