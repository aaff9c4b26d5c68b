"""The mean of every coordinate without its extremes."""

from torch import Tensor

from troth.aggregation.checks import check_byzantine, check_vectors
from troth.aggregation.distances import sorted_coordinates


def trimmed_mean(vectors_PD: Tensor, *, byzantine: int) -> Tensor:
    """Drop the `byzantine` smallest and largest values of each coordinate, average the rest (Yin et al. 2018)."""
    check_vectors(vectors_PD)
    peers = len(vectors_PD)
    check_byzantine(byzantine, peers, (peers - 1) // 2, "trimmed-mean")
    return sorted_coordinates(vectors_PD)[byzantine : peers - byzantine].mean(dim=0)
