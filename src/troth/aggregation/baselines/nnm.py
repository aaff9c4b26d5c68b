"""Nearest-neighbour mixing before another rule (Allouah et al. 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
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
    nearest_PK = pairwise_distances(vectors_PD).argsort(dim=1, stable=True)[:, : peers - byzantine]
    # Row by row in their order, and not by a product of matrices: a far row times 0 would be in every sum.
    return torch.stack([vectors_PD[nearest_K].mean(dim=0) for nearest_K in nearest_PK.sort(dim=1).values])


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
