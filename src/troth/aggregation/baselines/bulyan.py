"""Bulyan over Krum (El Mhamdi, Guerraoui and Rouault 2018)."""

import torch
from torch import Tensor

from troth.aggregation.checks import check_byzantine, check_vectors
from troth.aggregation.distances import nearest_to_median, pairwise_distances, sorted_coordinates

# P peers, D coordinates


def bulyan(vectors_PD: Tensor, *, byzantine: int) -> Tensor:
    """Choose `P − 2·byzantine` rows, one after the other by Krum among those left; then, in every coordinate, the mean of
    the `P − 4·byzantine` chosen values nearest to their median.

    Tolerates `4·byzantine + 3 ≤ P`. Krum among r rows counts `r − byzantine − 2` neighbours, and at least one.
    """
    check_vectors(vectors_PD)
    peers = len(vectors_PD)
    check_byzantine(byzantine, peers, (peers - 3) // 4 if byzantine else 0, "bulyan")
    chosen = _chosen(pairwise_distances(vectors_PD).square(), byzantine)
    return nearest_to_median(sorted_coordinates(vectors_PD[chosen]), peers - 4 * byzantine)


def _chosen(square_PP: Tensor, byzantine: int) -> list[int]:
    """The rows that Krum picks in turn, each time among those that it has not yet picked."""
    square_PP = square_PP.cpu().fill_diagonal_(0)
    left, chosen = list(range(len(square_PP))), []
    for _ in range(len(left) - 2 * byzantine if byzantine else 0):
        neighbours = max(1, len(left) - byzantine - 2)
        nearest_first = square_PP[left][:, left].sort(dim=1).values  # column 0 is the row itself
        best = int(torch.argmin(nearest_first[:, 1 : 1 + neighbours].sum(dim=1)))
        chosen.append(left.pop(best))
    return chosen or left
