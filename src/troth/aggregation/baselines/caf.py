"""CAF, the covariance-bound agnostic filter (Allouah, Guerraoui and Stephan 2025)."""

import numpy as np
import torch
from torch import Tensor

from troth.aggregation.checks import AggregationError, check_byzantine, check_vectors
from troth.aggregation.distances import pairwise_distances
from troth.aggregation.exact import Floats

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
    weight_P = np.ones(peers)
    best_P, least = weight_P / peers, float("inf")
    while weight_P.sum() > peers - 2 * byzantine:
        share_P = weight_P / weight_P.sum()
        variance, along_P = _top_direction(gram_PP, share_P)
        if variance < least:
            best_P, least = share_P, variance
        squares_P = along_P**2
        if not squares_P.max() > 0:
            break  # all rows that count are equal
        weight_P = weight_P * (1 - squares_P / squares_P.max())
    counted = np.flatnonzero(best_P)
    rows_PD = vectors_PD[torch.from_numpy(counted).to(vectors_PD.device)].double()
    mean_D: Tensor = torch.from_numpy(best_P[counted]).to(rows_PD) @ rows_PD
    return mean_D.to(vectors_PD.dtype)


def _top_direction(gram_PP: Floats, share_P: Floats) -> tuple[float, Floats]:
    """The largest variance of the weighted rows in any direction, and how far every row is from the mean along it.

    Rows without weight are left out of all sums, and count as lying on the mean: theirs would drown the others'.
    """
    counted = np.flatnonzero(share_P)
    gram_KK, share_K = gram_PP[np.ix_(counted, counted)], share_P[counted]
    to_mean_K = gram_KK @ share_K
    centred_KK = gram_KK - to_mean_K[:, None] - to_mean_K[None, :] + share_K @ to_mean_K
    root_K = np.sqrt(share_K)
    variance_K, direction_KK = np.linalg.eigh(root_K[:, None] * centred_KK * root_K[None, :])
    variance, along_P = float(variance_K[-1]), np.zeros_like(share_P)
    if variance > 0:
        along_P[counted] = centred_KK @ (root_K * direction_KK[:, -1]) / variance**0.5
    return variance, along_P


def _gram(vectors_PD: Tensor) -> Floats:
    """Inner products around the most central row: around zero or the mean, long rows would swallow the digits of the rest."""
    center = int(pairwise_distances(vectors_PD).median(dim=1).values.argmin())
    away_PD = vectors_PD.double() - vectors_PD[center].double()
    gram_PP: Floats = (away_PD @ away_PD.T).cpu().numpy()
    if not np.isfinite(gram_PP).all():
        raise AggregationError("caf: there are rows too long to be squared: scale the vectors down")
    return gram_PP
