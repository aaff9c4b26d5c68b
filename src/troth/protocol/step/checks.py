"""Checks of reports from announced numbers alone, so that no two honest peers fall on different sides (SPEC V2).

The definition is `sum_vanishes` and `too_long`: sums by `math.fsum`, which rounds once, and single correctly rounded
operations. `suspicious_parts` gives the same answers faster: plain float64 sums decide where they are farther from the
threshold than rounding could ever carry them, and the definition decides the rest.
"""

import math
from collections.abc import Sequence

import numpy as np

from troth.aggregation import residual_tolerance
from troth.protocol.core.parts import Bounds
from troth.protocol.wire.messages import ReportNumbers
from troth.protocol.wire.report_table import ReportTable

# C contributors, P parts, K projections, D coordinates

_LONGEST = 2.5  # an honest RMS of 16 projections exceeds 2.5 times the length with probability 3·10⁻¹⁴
_FAR = 2.0  # a plain sum of so few numbers is off by 10⁻¹⁴ of them; the tolerance is 10⁻¹² of them or more
_NEAR = 1 - 1e-9  # lengths have no cancellation: plain arithmetic is off by 10⁻¹⁴ of them


def suspicious_parts(table: ReportTable, norms: Sequence[float], taus: Sequence[float], bounds: Bounds) -> set[int]:
    """Parts whose reports do not add up to zero, or hold one that is longer than it can be.

    Tolerances follow the aggregates' announced norms, which fit exactly the blobs that everyone holds (SPEC A3): else an owner
    could announce 10⁹ and put its aggregate anywhere.
    """
    norms_CP, tau_P, size_P = table.norms_CP, np.asarray(taus), np.diff(bounds)
    epsilon_P = 2.0**-21 * np.asarray(norms) + np.sqrt(size_P) * 2.0**-125
    moved_CP = np.minimum(2 * tau_P, epsilon_P * tau_P / np.maximum(norms_CP - epsilon_P, tau_P))
    clipped_CP = np.minimum(norms_CP, tau_P)
    tolerance_P = moved_CP.sum(axis=0) + 2.0**-40 * clipped_CP.sum(axis=0)
    near_P = table.rms_of_sums_P <= tolerance_P / _FAR
    clear_P = near_P & (table.rms_CP <= _LONGEST * clipped_CP * _NEAR).all(axis=0)
    if clear_P.all():
        return set()
    unclear = np.flatnonzero(~clear_P).tolist()
    return {p for p in unclear if _suspicious(p, table.reports, norms[p], taus[p], int(size_P[p]))}


def _suspicious(part: int, reports: Sequence[ReportNumbers], center_norm: float, tau: float, size: int) -> bool:
    vanishes = sum_vanishes(part, reports, center_norm, tau, size)
    return not vanishes or any(too_long(part, report, tau) for report in reports)


def sum_vanishes(part: int, reports: Sequence[ReportNumbers], center_norm: float, tau: float, size: int) -> bool:
    """Tell whether the clipped differences from the aggregate add up to zero, as they do at the clipped centre only."""
    sums = [math.fsum(column) for column in zip(*(row.projections_PK[part].tolist() for row in reports), strict=True)]
    norms = [float(row.norms_P[part]) for row in reports]
    return _rms(sums) <= residual_tolerance(center_norm, norms, tau=tau, size=size)


def too_long(part: int, report: ReportNumbers, tau: float) -> bool:
    """Tell whether projections are longer than the clipped vector that they are of can be."""
    return _rms(report.projections_PK[part].tolist()) > _LONGEST * min(float(report.norms_P[part]), tau)


def _rms(numbers: list[float]) -> float:
    return math.sqrt(math.fsum(number * number for number in numbers) / len(numbers))
