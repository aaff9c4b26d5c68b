"""What everyone checks from announced numbers alone, so that no two honest peers fall on different sides (SPEC V2).

Sums are `math.fsum`, which rounds once; every other operation is a single correctly rounded one.
"""

import math
from collections.abc import Mapping

from troth.aggregation import residual_tolerance
from troth.crypto import PeerId
from troth.protocol.messages import ReportNumbers

_LONGEST = 2.5  # an honest RMS of 16 projections exceeds 2.5 times the length with probability 3·10⁻¹⁴


def sum_vanishes(part: int, reports: Mapping[PeerId, ReportNumbers], center_norm: float, tau: float) -> bool:
    """Whether the clipped differences from the aggregate add up to nothing, as they do at the clipped centre only (SPEC V2)."""
    rows = list(reports.values())
    sums = [math.fsum(column) for column in zip(*(row.projections_PK[part].tolist() for row in rows), strict=True)]
    clipped = math.fsum(min(float(row.norms_P[part]), tau) for row in rows)
    return _rms(sums) <= residual_tolerance(center_norm, clipped, tau=tau, peers=len(rows))


def too_long(part: int, report: ReportNumbers, tau: float) -> bool:
    """Whether projections claim more than the vector they are of can have."""
    return _rms(report.projections_PK[part].tolist()) > _LONGEST * min(float(report.norms_P[part]), tau)


def _rms(numbers: list[float]) -> float:
    return math.sqrt(math.fsum(number * number for number in numbers) / len(numbers))
