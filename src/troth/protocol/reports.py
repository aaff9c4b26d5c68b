"""What a contributor says about its gradient and the aggregate, and when two such reports agree."""

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from troth.protocol.messages import ReportNumbers
from troth.protocol.parts import Bounds
from troth.protocol.run import Parameters

# P parts, K projections, D coordinates

CONVICT_AT = 1e-9  # relative difference of a report beyond which a juror convicts …
ACCUSE_AT = 2e-9  # … and a validator accuses: twice as much, so that no honest accuser is left alone


def make_report(
    gradient_D: Tensor, aggregate_D: Tensor, signs_KD: NDArray[np.float64], bounds: Bounds, parameters: Parameters
) -> ReportNumbers:
    """`norm = ‖g[p] − ĝ[p]‖` and `s_k = ⟨z_k[p], (g[p] − ĝ[p])·min(1, τ_p/norm)⟩` in float64 (SPEC A5)."""
    away_D = gradient_D.cpu().double().numpy() - aggregate_D.cpu().double().numpy()
    norms, projections = [], []
    for start, stop in pairwise(bounds):
        part_D = away_D[start:stop]
        norm = math.sqrt(part_D @ part_D)
        scale = min(1.0, parameters.part_tau(stop - start) / norm) if norm else 1.0
        norms.append(norm)
        projections.append((signs_KD[:, start:stop] @ part_D) * scale)
    return ReportNumbers(np.array(norms), np.stack(projections))


def reports_differ(
    said: ReportNumbers, right: ReportNumbers, bounds: Bounds, parameters: Parameters, tolerance: float
) -> bool:
    """Whether any norm or projection is off by more than `tolerance` of what is right (SPEC D2)."""
    tau_P = np.array([parameters.part_tau(b - a) for a, b in pairwise(bounds)])
    norm_off_P = np.abs(said.norms_P - right.norms_P) > tolerance * right.norms_P
    allowed_P = tolerance * np.minimum(right.norms_P, tau_P)
    projection_off_PK = np.abs(said.projections_PK - right.projections_PK) > allowed_P[:, None]
    return bool(norm_off_P.any() or projection_off_PK.any())
