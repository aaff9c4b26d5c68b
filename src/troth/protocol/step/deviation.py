"""How far another's report is from one's own where hardware computes other bits: the tolerant audit (SPEC D3)."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from troth.protocol.core.parts import Bounds
from troth.protocol.wire.messages import ReportNumbers

# P parts, K projections, D coordinates, d of them in a part

CONVICT = 2.5  # times h, the run's agreed deviation: beyond this a juror convicts …
ACCUSE = 5.0  # … and beyond this a validator accuses: twice as much, so that no honest accuser is left alone

_LEAST_SHARE = 0.1  # of an even part: else rounding in a part that is near zero would look like a lie


def deviations(
    said: ReportNumbers,
    own: ReportNumbers,
    own_gradient_D: Tensor,
    bounds: Bounds,
    tau_P: NDArray[np.float64],
    usual_P: NDArray[np.float64] | float = 0.0,
) -> NDArray[np.float64]:
    """Part by part the largest of `RMS_k(u_said − u_own)/G` and `|said − own|/G` of norms and lengths (SPEC D3).

    `u_k = s_k·max(1, norm/τ)` undoes the clipping, so that `u_said − u_own` is the projection of the difference of the two
    gradients: the aggregate drops out. `G = max(‖g_own[p]‖, 0.1·‖g_own‖·√(d/D))`, and `usual_P` at least: lengths agreed on, such
    as the lower medians of the announced norms. What is said is hostile: numbers that overflow are infinitely far off,
    never an error, and never "not a number", which no threshold catches.
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
    """Scaled by the largest first: squares of what a float64 can hold may be too large or too small for one."""
    largest_P: NDArray[np.float64] = np.abs(numbers_PK).max(axis=1)
    unit_P = np.where(largest_P == 0, 1.0, largest_P)
    rms_P: NDArray[np.float64] = largest_P * np.sqrt(np.square(numbers_PK / unit_P[:, None]).mean(axis=1))
    return rms_P


def _scales(gradient_D: Tensor, bounds: Bounds) -> NDArray[np.float64]:
    """G of every part."""
    own_D = gradient_D.detach().cpu().double().numpy()
    lengths_P = np.array([np.linalg.norm(own_D[start:stop]) for start, stop in pairwise(bounds)])
    least_P = _LEAST_SHARE * np.linalg.norm(own_D) * np.sqrt(np.diff(bounds) / len(own_D))
    scales_P: NDArray[np.float64] = np.maximum(lengths_P, least_P)
    return scales_P
