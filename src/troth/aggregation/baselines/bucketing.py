"""Bucketing before another rule (Karimireddy, He and Jaggi 2022)."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from troth.aggregation.baselines.pre_aggregation import PreAggregation
from troth.aggregation.checks import AggregationError, check_vectors
from troth.aggregation.memory import Aggregator, Setting

# P peers, S buckets, D coordinates


@dataclass(frozen=True)
class Bucketing(PreAggregation):
    """means of random buckets of rows, then another rule (Karimireddy et al. 2022)"""

    rule: str = "geometric-median"
    size: int = 2

    def __post_init__(self) -> None:
        if self.size < 1:
            raise AggregationError(f"size must be at least 1, got {self.size}")

    def begin(self, setting: Setting) -> Aggregator:
        buckets = replace(setting, peers=-(-setting.peers // self.size))
        return _Bucketed(self.size, setting.seed, self.begin_inner(buckets))

    def most(self, peers: int) -> int:
        """A liar spoils one bucket, so there may be as many as the inner rule withstands among the buckets."""
        return self.most_inside(-(-peers // self.size))


@dataclass
class _Bucketed:
    size: int
    seed: bytes
    inner: Aggregator
    step: int = 0

    def __call__(self, vectors_PD: Tensor, senders: Sequence[int]) -> Tensor:
        check_vectors(vectors_PD)
        order = self._order(len(vectors_PD))
        self.step += 1
        buckets = [order[start : start + self.size] for start in range(0, len(order), self.size)]
        means_SD = torch.stack([vectors_PD[bucket].mean(dim=0) for bucket in buckets])
        return self.inner(means_SD, range(len(buckets)))

    def _order(self, rows: int) -> list[int]:
        """This step's permutation: rows sorted by a hash of the seed, so that it is the same on every machine."""

        def key(row: int) -> bytes:
            return hashlib.sha256(b"bucketing %d %d " % (self.step, row) + self.seed).digest()

        return sorted(range(rows), key=key)
