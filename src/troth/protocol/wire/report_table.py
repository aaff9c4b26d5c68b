"""Reports of all contributors side by side: sums and medians that V1 to V3 and the scales begin with."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from troth.protocol.wire.messages import ReportNumbers

# C contributors, P parts, K projections
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ReportTable:
    """Reports in the order of the contributors' keys. Nothing here is compared with a threshold."""

    reports: tuple[ReportNumbers, ...]

    @cached_property
    def lengths_CP(self) -> Floats:  # noqa: N802  # shapes are in the names
        return np.stack([report.lengths_P for report in self.reports])

    @cached_property
    def norms_CP(self) -> Floats:  # noqa: N802
        return np.stack([report.norms_P for report in self.reports])

    @cached_property
    def projections_CPK(self) -> Floats:  # noqa: N802
        return np.stack([report.projections_PK for report in self.reports])

    @cached_property
    def rms_of_sums_P(self) -> Floats:  # noqa: N802
        """Root mean square, over the projections, of their sums over the contributors; in plain float64."""
        rms_P: Floats = np.sqrt(np.square(self.projections_CPK.sum(axis=0)).mean(axis=1))
        return rms_P

    @cached_property
    def rms_CP(self) -> Floats:  # noqa: N802
        """Root mean square of each contributor's projections; in plain float64."""
        rms_CP: Floats = np.sqrt(np.square(self.projections_CPK).mean(axis=2))
        return rms_CP

    @cached_property
    def median_lengths_P(self) -> Floats:  # noqa: N802
        """Lower medians over the contributors."""
        return self._lower_medians(self.lengths_CP)

    @cached_property
    def median_norms_P(self) -> Floats:  # noqa: N802
        """Lower medians over the contributors."""
        return self._lower_medians(self.norms_CP)

    def about(self, part: int) -> ReportNumbers:
        """Reports about one part: a row per contributor, instead of per part."""
        return ReportNumbers(self.lengths_CP[:, part], self.norms_CP[:, part], self.projections_CPK[:, part])

    def _lower_medians(self, numbers_CP: Floats) -> Floats:
        medians_P: Floats = np.sort(numbers_CP, axis=0)[(len(numbers_CP) - 1) // 2]
        return medians_P
