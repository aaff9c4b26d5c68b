"""What a contributor says about its gradient and the aggregate, and when two such reports agree."""

import math
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from troth.protocol.messages import ReportNumbers
from troth.protocol.parts import Bounds

# P parts, K projections, D coordinates

CONVICT_AT = 1e-9  # relative difference of a report beyond which a juror convicts …
ACCUSE_AT = 2e-9  # … and a validator or owner accuses: twice as much, so that no honest accuser is left alone
COVER_AT = 4e-9  # … and an owner that said nothing is guilty of letting it pass


def make_report(
    gradient_D: Tensor, aggregate_D: Tensor, signs_KD: NDArray[np.float64], bounds: Bounds, taus: Iterable[float]
) -> ReportNumbers:
    """`norm = ‖g[p] − ĝ[p]‖` and `s_k = ⟨z_k[p], (g[p] − ĝ[p])·min(1, τ_p/norm)⟩` in float64 (SPEC A5)."""
    center_D = aggregate_D.cpu().double().numpy()
    away_D = gradient_D.cpu().double().numpy() - center_D
    norms, projections = [], []
    for (start, stop), tau in zip(pairwise(bounds), taus, strict=True):
        part_D = away_D[start:stop] if np.isfinite(away_D[start:stop]).all() else -center_D[start:stop]  # (SPEC C3)
        norm = math.sqrt(part_D @ part_D)
        scale = min(1.0, tau / norm) if norm else 1.0
        norms.append(norm)
        projections.append((signs_KD[:, start:stop] @ part_D) * scale)
    return ReportNumbers(np.array(norms), np.stack(projections))


def relative_errors(said: ReportNumbers, right: ReportNumbers, tau_P: NDArray[np.float64]) -> NDArray[np.float64]:
    """Row by row the largest difference: norms relative to themselves, projections to `min(norm, τ)` (SPEC D2, V1)."""
    off_norm_P = np.abs(said.norms_P - right.norms_P)
    off_P = np.abs(said.projections_PK - right.projections_PK).max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # Where nothing but zero is right, any difference is infinitely large.
        norm_error_P = np.where(off_norm_P == 0, 0.0, off_norm_P / right.norms_P)
        error_P = np.where(off_P == 0, 0.0, off_P / np.minimum(right.norms_P, tau_P))
    return np.maximum(norm_error_P, error_P)
