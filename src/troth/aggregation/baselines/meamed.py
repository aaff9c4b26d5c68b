"""Mean around the median (Xie, Koyejo and Gupta 2018)."""

from torch import Tensor

from troth.aggregation.checks import check_byzantine, check_vectors
from troth.aggregation.distances import nearest_to_median, sorted_coordinates


def meamed(vectors_PD: Tensor, *, byzantine: int) -> Tensor:
    """In every coordinate, the mean of the `P − byzantine` values nearest to the median.

    Tolerates `2·byzantine < P`. A liar within the spread of the honest values stays in.
    """
    check_vectors(vectors_PD)
    peers = len(vectors_PD)
    check_byzantine(byzantine, peers, (peers - 1) // 2, "meamed")
    return nearest_to_median(sorted_coordinates(vectors_PD), peers - byzantine)
