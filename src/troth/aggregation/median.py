"""The median of every coordinate by itself."""

from torch import Tensor

from troth.aggregation.checks import check_vectors
from troth.aggregation.distances import sorted_coordinates


def median(vectors_PD: Tensor) -> Tensor:
    """The middle value of each coordinate; the mean of the two middle ones when P is even (Yin et al. 2018).

    Withstands fewer than P/2 liars, at the price of a bias when the coordinates are skewed.
    """
    check_vectors(vectors_PD)
    peers = len(vectors_PD)
    sorted_PD = sorted_coordinates(vectors_PD)
    # Halved before adding: the sum of two finite numbers may overflow.
    return sorted_PD[(peers - 1) // 2] / 2 + sorted_PD[peers // 2] / 2
