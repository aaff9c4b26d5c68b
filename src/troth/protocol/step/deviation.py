"""The tolerant audit across classes of hardware: deviation of a report from the auditor's own (SPEC D3)."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from troth.protocol.core.parts import Bounds
from troth.protocol.wire.messages import ReportNumbers

# P parts, K projections, D coordinates, d of them in a part

CONVICT = 2.5  # in units of h, the run's agreed deviation: above this a juror convicts …
ACCUSE = 5.0  # … and above this an auditor accuses: twice as much, so that no honest accuser finds itself alone

LEAST_SHARE = 0.1  # least length, relative to an even part's: else rounding in a part near zero would look like a lie


def deviations(
    said: ReportNumbers,
    own: ReportNumbers,
    own_gradient_D: Tensor,
    bounds: Bounds,
    tau_P: NDArray[np.float64],
    usual_P: NDArray[np.float64] | float = 0.0,
) -> NDArray[np.float64]:
    """Largest, part by part, of `RMS_k(u_said − u_own)/G` and of `|said − own|/G` for norms and lengths (SPEC D3).

    `u_k = s_k·max(1, norm/τ)` undoes the clipping, so that `u_said − u_own` is the projection of the difference of the two
    gradients: the aggregate drops out. `G = max(‖g_own[p]‖, 0.1·‖g_own‖·√(d/D))`, and at least `usual_P`: agreed lengths, such
    as the lower medians of the reported norms. Reports are hostile: numbers that overflow are infinitely far off, never an
    error, and never NaN, which no threshold catches.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        away_PK = _unclipped(said, tau_P) - _unclipped(own, tau_P)
        off_P = np.maximum(_rms(away_PK), np.abs(said.norms_P - own.norms_P))
        off_P = np.maximum(off_P, np.abs(said.lengths_P - own.lengths_P))
        scale_P = np.maximum(_scales(own_gradient_D, bounds), usual_P)
        deviation_P = np.where(off_P == 0, 0.0, off_P / scale_P)
    return np.where(np.isnan(deviation_P), np.inf, deviation_P)


def _unclipped(report: ReportNumbers, tau_P: NDArray[np.float64]) -> NDArray[np.float64]:
    return report.projections_PK * np.maximum(1.0, report.norms_P / tau_P)[:, None]


def _rms(numbers_PK: NDArray[np.float64]) -> NDArray[np.float64]:
    """Root mean square of each row, scaled by its largest number first: else squares could overflow or vanish."""
    largest_P: NDArray[np.float64] = np.abs(numbers_PK).max(axis=1)
    unit_P = np.where(largest_P == 0, 1.0, largest_P)
    rms_P: NDArray[np.float64] = largest_P * np.sqrt(np.square(numbers_PK / unit_P[:, None]).mean(axis=1))
    return rms_P


def _scales(gradient_D: Tensor, bounds: Bounds) -> NDArray[np.float64]:
    """`G` of every part, from the own gradient."""
    own_D = gradient_D.detach().cpu().double().numpy()
    lengths_P = np.array([np.linalg.norm(own_D[start:stop]) for start, stop in pairwise(bounds)])
    least_P = LEAST_SHARE * np.linalg.norm(own_D) * np.sqrt(np.diff(bounds) / len(own_D))
    scales_P: NDArray[np.float64] = np.maximum(lengths_P, least_P)
    return scales_P
