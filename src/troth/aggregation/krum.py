"""Krum and Multi-Krum: trust the vectors that have many near neighbours (Blanchard et al. 2017)."""

from torch import Tensor

from troth.aggregation.checks import AggregationError, check_byzantine, check_vectors
from troth.aggregation.distances import pairwise_distances


def krum(vectors_PD: Tensor, *, byzantine: int, power: int = 2) -> Tensor:
    """The vector with the smallest sum of squared distances to its `P − byzantine − 2` nearest others.

    Blanchard's definition. Some libraries count one neighbour more; `byzantine + 1` there is `byzantine` here. Others add up
    fourth powers of the distances: `power=4`.
    """
    check_vectors(vectors_PD)
    return vectors_PD[int(_scores(vectors_PD, byzantine, power).argmin())].clone()


def multi_krum(vectors_PD: Tensor, *, byzantine: int, keep: int | None = None, power: int = 2) -> Tensor:
    """The mean of the `keep` vectors with the smallest Krum scores; `P − byzantine` of them by default."""
    check_vectors(vectors_PD)
    peers = len(vectors_PD)
    check_byzantine(byzantine, peers, peers - 3, "multi-krum")
    keep = peers - byzantine if keep is None else keep
    if not 1 <= keep <= peers:
        raise AggregationError(f"multi-krum over {peers} rows can keep 1 to {peers} of them, got keep={keep}")
    best_rows = _scores(vectors_PD, byzantine, power).argsort(stable=True)[:keep]
    return vectors_PD[best_rows].mean(dim=0)


def _scores(vectors_PD: Tensor, byzantine: int, power: int) -> Tensor:
    peers = len(vectors_PD)
    check_byzantine(byzantine, peers, peers - 3, "krum")
    if power < 1:
        raise AggregationError(f"krum: power must be at least 1, got {power}")
    nearest_first_PP = pairwise_distances(vectors_PD).pow(power).sort(dim=1).values
    return nearest_first_PP[:, 1 : peers - byzantine - 1].sum(dim=1)  # column 0 is the row itself
