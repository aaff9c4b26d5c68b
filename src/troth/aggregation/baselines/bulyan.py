"""Bulyan over Krum (El Mhamdi, Guerraoui and Rouault 2018)."""

import numpy as np
from torch import Tensor

from troth.aggregation.checks import check_byzantine, check_vectors
from troth.aggregation.distances import nearest_to_median, pairwise_distances, sorted_coordinates
from troth.aggregation.exact import Floats

# P peers, D coordinates


def bulyan(vectors_PD: Tensor, *, byzantine: int) -> Tensor:
    """Choose `P − 2·byzantine` rows, one after the other by Krum among those left; then, in every coordinate, the mean of
    the `P − 4·byzantine` chosen values nearest to their median.

    Tolerates `4·byzantine + 3 ≤ P`. Krum among r rows counts `r − byzantine − 2` neighbours, and at least one.
    """
    check_vectors(vectors_PD)
    peers = len(vectors_PD)
    check_byzantine(byzantine, peers, (peers - 3) // 4 if byzantine else 0, "bulyan")
    chosen = _chosen(pairwise_distances(vectors_PD).square().cpu().numpy(), byzantine)
    return nearest_to_median(sorted_coordinates(vectors_PD[chosen]), peers - 4 * byzantine)


def _chosen(square_PP: Floats, byzantine: int) -> list[int]:
    """The rows that Krum picks in turn, each time among those that it has not yet picked."""
    left = list(range(len(square_PP)))
    chosen: list[int] = []
    while len(chosen) < len(square_PP) - 2 * byzantine:
        neighbours = max(1, len(left) - byzantine - 2)
        nearest_first = np.sort(square_PP[np.ix_(left, left)], axis=1)  # column 0 is the row itself
        best = int(nearest_first[:, 1 : 1 + neighbours].sum(axis=1).argmin())
        chosen.append(left.pop(best))
    return chosen
