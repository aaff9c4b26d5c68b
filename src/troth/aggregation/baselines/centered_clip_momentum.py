"""Centred clipping around the last aggregate, for workers with momentum (Karimireddy, He and Jaggi 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from troth.aggregation.centered_clip import check_tau, clip_weights
from troth.aggregation.checks import AggregationError, check_vectors
from troth.aggregation.memory import Aggregator, RuleWithMemory, Setting

# P peers, D coordinates


@dataclass(frozen=True)
class CenteredClipMomentum(RuleWithMemory):
    """a few clipped steps from the last aggregate; for --momentum (Karimireddy et al. 2021)"""

    iterations: int = 1

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise AggregationError(f"iterations must be at least 1, got {self.iterations}")

    def begin(self, setting: Setting) -> Aggregator:
        check_tau(setting.tau)
        return _FromTheLast(self.iterations, setting.tau)


@dataclass
class _FromTheLast:
    iterations: int
    tau: float
    last_D: Tensor | None = None  # zero before the first step

    def __call__(self, vectors_PD: Tensor, senders: Sequence[int]) -> Tensor:
        """`v ← v + mean_i (x_i − v)·min(1, τ/‖x_i − v‖)`, so often as asked, from the last result."""
        check_vectors(vectors_PD)
        v_D = torch.zeros_like(vectors_PD[0]) if self.last_D is None else self.last_D
        for _ in range(self.iterations):
            away_PD = vectors_PD - v_D
            length_P = torch.linalg.vector_norm(away_PD, dim=1, dtype=torch.float64)
            scale_P = (clip_weights(length_P, self.tau) / len(vectors_PD)).to(away_PD)
            v_D = v_D + (scale_P[:, None] * away_PD).sum(dim=0)
        self.last_D = v_D
        return v_D.clone()
