"""Minimum diameter averaging (Rousseeuw 1985; El Mhamdi et al. 2020)."""

from torch import Tensor

from troth.aggregation.checks import AggregationError, check_byzantine, check_vectors
from troth.aggregation.distances import pairwise_distances

# P peers, D coordinates

MOST_BRANCHES = 200_000  # of the search for a subset, all thresholds together: about a second


def mda(vectors_PD: Tensor, *, byzantine: int) -> Tensor:
    """The mean of the `P − byzantine` rows with the smallest largest distance between two of them.

    Tolerates `2·byzantine < P`. Of several such subsets, the first in the order of the rows. The search is exact; it is
    refused with an error where it would take more than `MOST_BRANCHES` branches.
    """
    check_vectors(vectors_PD)
    peers = len(vectors_PD)
    check_byzantine(byzantine, peers, (peers - 1) // 2, "mda")
    kept = tightest_subset(pairwise_distances(vectors_PD), peers - byzantine)
    return vectors_PD[kept].mean(dim=0)


def tightest_subset(distance_PP: Tensor, keep: int) -> list[int]:
    """The `keep` rows of smallest diameter.

    Rows are far apart where their distance exceeds a threshold. A subset without such pairs is what is left after a cover of
    all far pairs by at most `P − keep` rows, and a cover that small is found by few branches. The least threshold with one
    is found by bisection among the distances.
    """
    peers = len(distance_PP)
    distances = distance_PP.tolist()
    thresholds = sorted({0.0, *(distances[i][j] for i in range(peers) for j in range(i))})
    search = _Search(distances)
    everyone, low, high = (1 << peers) - 1, 0, len(thresholds) - 1
    while low < high:
        middle = (low + high) // 2
        if search.among(everyone, keep, search.far(thresholds[middle])):
            high = middle
        else:
            low = middle + 1
    return search.first(keep, search.far(thresholds[low]))


class _Search:
    """Subsets without far pairs; a set of rows is a number, with a bit for each of them."""

    def __init__(self, distances: list[list[float]]) -> None:
        self.distances = distances
        self.branches = 0

    def far(self, threshold: float) -> list[int]:
        """For every row, the rows farther from it than the threshold."""
        return [sum(1 << j for j, distance in enumerate(row) if distance > threshold) for row in self.distances]

    def first(self, keep: int, far: list[int]) -> list[int]:
        """The subset that comes first in the order of the rows: each is taken if enough others can be had with it."""
        chosen: list[int] = []
        open_rows = (1 << len(far)) - 1
        for row in range(len(far)):
            if len(chosen) == keep:
                break
            if not open_rows >> row & 1:
                continue
            open_rows &= ~(1 << row)
            rest = open_rows & ~far[row]
            if self.among(rest, keep - len(chosen) - 1, far):
                chosen.append(row)
                open_rows = rest
        return chosen

    def among(self, rows: int, keep: int, far: list[int]) -> bool:
        """Whether `keep` of these rows can be had without a far pair: drop a row, or all that are far from it."""
        spare = rows.bit_count() - keep
        if spare < 0:
            return False
        self.branches += 1
        if self.branches > MOST_BRANCHES:
            raise AggregationError(
                f"mda: the subset of smallest diameter takes more than {MOST_BRANCHES:,} branches to find among "
                f"{len(far)} rows; use fewer rows, or another rule"
            )
        worst, most = -1, 0
        for row in range(len(far)):
            if rows >> row & 1 and (far[row] & rows).bit_count() > most:
                worst, most = row, (far[row] & rows).bit_count()
        if most == 0:
            return True
        if most * spare < self._far_pairs(rows, far):
            return False  # every row that is dropped settles at most `most` pairs
        if self.among(rows & ~(1 << worst), keep, far):
            return True
        return most > 1 and self.among(rows & ~far[worst], keep, far)

    def _far_pairs(self, rows: int, far: list[int]) -> int:
        return sum((far[row] & rows).bit_count() for row in range(len(far)) if rows >> row & 1) // 2
