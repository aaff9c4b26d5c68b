"""Nearest-neighbour mixing before another rule (Allouah et al. 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from troth.aggregation.baselines.pre_aggregation import PreAggregation
from troth.aggregation.checks import check_byzantine, check_vectors
from troth.aggregation.distances import pairwise_distances
from troth.aggregation.memory import Aggregator, Setting, covered

# P peers, K nearest rows, D coordinates


def mix_nearest(vectors_PD: Tensor, *, byzantine: int) -> Tensor:
    """Replace every row by the mean of the `P − byzantine` rows nearest to it, itself among them."""
    check_vectors(vectors_PD)
    peers = len(vectors_PD)
    check_byzantine(byzantine, peers, peers - 1, "nnm")
    rows_PD, keep = vectors_PD.double(), peers - byzantine
    nearest_PK = pairwise_distances(vectors_PD).argsort(dim=1, stable=True)[:, :keep]
    near_PP = rows_PD.new_zeros(peers, peers).scatter_(1, nearest_PK, 1.0)
    return (near_PP @ rows_PD / keep).to(vectors_PD.dtype)


@dataclass(frozen=True)
class NearestNeighbourMixing(PreAggregation):
    """every row mixed with its n−b nearest, then another rule (Allouah et al. 2023)"""

    rule: str = "trimmed-mean"

    def begin(self, setting: Setting) -> Aggregator:
        return _Mixed(self, setting, self.begin_inner(setting))

    def most(self, peers: int) -> int:
        return min((peers - 1) // 2, self.most_inside(peers))


@dataclass
class _Mixed:
    rule: NearestNeighbourMixing
    setting: Setting
    inner: Aggregator

    def __call__(self, vectors_PD: Tensor, senders: Sequence[int]) -> Tensor:
        liars = covered(self.rule, self.setting.left(len(senders))).byzantine
        return self.inner(mix_nearest(vectors_PD, byzantine=liars), senders)
