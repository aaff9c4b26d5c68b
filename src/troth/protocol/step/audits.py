"""Recomputing another member's work: an auditor's check of a gradient, and a juror's of a part."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from troth.aggregation import acquitted_center, judge_center
from troth.crypto import Digest, PeerId
from troth.protocol.core.parts import ProvenPart, commit_parts, opens, rows_of
from troth.protocol.core.roles import gradient_seed
from troth.protocol.core.scales import part_taus
from troth.protocol.core.state import AuditRecord, Peer
from troth.protocol.step.attempt import Attempt, Reduced, Reported
from troth.protocol.step.deviation import ACCUSE, CONVICT, deviations
from troth.protocol.step.reports import (
    ACCUSE_AT,
    CONVICT_AT,
    COVER_AT,
    Project,
    make_report,
    relative_errors,
    right_reports,
)
from troth.protocol.wire.messages import Commit, Kind, Malformed, Report, ReportNumbers

T = TypeVar("T")

# P contributors, D coordinates


@dataclass(frozen=True)
class Finding:
    """Result of recomputing a member's gradient; auditors and jurors draw their own conclusions."""

    root: Digest  # of the gradient that was recomputed
    fits: bool | None  # it is the committed one; None: another class computes other bits anyway
    report_error: float  # relative error of the report; infinite where there is nothing to compare
    deviation: float | None  # of the report, in units of h, the run's agreed deviation; None: a run of one class
    covered: tuple[int, ...] = ()  # parts whose owners must have seen that the report is wrong

    def accusation(self, *, bits_count: bool) -> Kind | None:
        """An auditor's accusation, if any; of bits only where a quorum of jurors can compare them (SPEC D1–D3)."""
        if self.deviation is not None and self.deviation > ACCUSE:
            return Kind.DEVIATION
        if self.fits is None or not bits_count:
            return None
        if not self.fits:
            return Kind.GRADIENT
        return Kind.AUDITED_REPORT if self.report_error > ACCUSE_AT else None

    def guilty_of(self, kind: Kind) -> bool | None:
        """A juror's opinion on a charge of this kind; None where it cannot tell."""
        if kind == Kind.DEVIATION:
            return self.deviation is not None and self.deviation > CONVICT
        if self.fits is None:
            return None
        return not self.fits if kind == Kind.GRADIENT else self.fits and self.report_error > CONVICT_AT


async def audit(peer: Peer[T], kept: AuditRecord[T], target: PeerId) -> Finding:
    """Recompute the target's Merkle root and report of a recorded step from its public seed (SPEC D1–D3)."""
    gradient_D = await peer.work.recompute(kept.training, gradient_seed(kept.seed_randomness, target))
    commit = kept.accused(target, Kind.GRADIENT).message
    assert isinstance(commit, Commit)
    if target in kept.probed:  # its gradient went into nothing, and it reported nothing [J6]
        root = commit_parts(gradient_D, kept.bounds, peer.tools).root
        return Finding(root, root == commit.root, 0.0, None)
    report = kept.reports[target].message
    assert isinstance(report, Report)
    parameters, taus = peer.run.parameters, np.array(part_taus(kept.tau, kept.bounds))
    comparable = parameters.deviation is None or commit.hardware == peer.work.hardware_class()
    parts = commit_parts(gradient_D, kept.bounds, peer.tools)
    fits = parts.root == commit.root if comparable else None
    if fits is False and parameters.deviation is None:
        return Finding(parts.root, fits, math.inf, None)
    project = peer.tools.projector(kept.projection_key, parameters.projections, parameters.size)
    right = make_report(parts, kept.aggregate_D, project, taus)
    said = ReportNumbers.unpack(report.numbers, len(kept.bounds) - 1, parameters.projections)
    assert not isinstance(said, Malformed), "a contributor with a report of the wrong size is out (SPEC N1)"
    deviation = None
    if parameters.deviation is not None:
        usual_P = usual_norms(kept, parameters.projections)
        far = deviations(said, right, gradient_D, kept.bounds, taus, usual_P).max()
        deviation = float(far) / parameters.deviation
    errors_P = relative_errors(said, right, taus)
    covered = tuple(int(part) for part in np.flatnonzero(errors_P > COVER_AT)) if fits else ()  # (SPEC T7)
    return Finding(parts.root, fits, float(errors_P.max()), deviation, covered)


def usual_norms(kept: AuditRecord[T], projections: int) -> NDArray[np.float64]:
    """Lower median of the reported norms of every part: a single batch's gradient may be next to nothing (SPEC D3)."""
    reports = [announced.message for announced in kept.reports.values()]
    numbers = [
        ReportNumbers.unpack(r.numbers, len(kept.bounds) - 1, projections) for r in reports if isinstance(r, Report)
    ]
    norms_CP = np.stack([report.norms_P for report in numbers if not isinstance(report, Malformed)])
    usual_P: NDArray[np.float64] = np.sort(norms_CP, axis=0)[(len(norms_CP) - 1) // 2]
    return usual_P


@dataclass(frozen=True)
class PartFinding:
    """Verdict of a part's committed blobs on its owner and its reporters."""

    aggregate_wrong: bool
    report_errors: dict[PeerId, float]  # relative
    could_be_made: bool = False  # the owner says that there is no aggregate, and this peer finds one (SPEC A7)

    def convicts(self, reporter: PeerId) -> bool:
        return self.report_errors.get(reporter, 0.0) > CONVICT_AT

    def covered(self, named: frozenset[PeerId]) -> list[PeerId]:
        """Reporters so wrong that the owner must have seen it, and that it did not name (SPEC T7)."""
        return sorted(peer for peer, error in self.report_errors.items() if error > COVER_AT and peer not in named)


def examine_part(
    attempt: Attempt[T], part: int, proven_parts: Mapping[PeerId, ProvenPart], reduced: Reduced, reported: Reported
) -> PartFinding | None:
    """Check an aggregate and all reports about it against the blobs that contributors committed to (SPEC T6).

    None where the owner did not disclose all of them: its machine may have stopped, so nothing is proved.
    """
    peer, roots, bounds = attempt.context.peer, attempt.roots, attempt.context.roles.bounds
    (start, stop), tau, parameters = attempt.span(part), attempt.context.taus[part], peer.run.parameters
    contributors = sorted(roots)
    if not all(c in proven_parts and opens(proven_parts[c], part, bounds, roots[c], peer.tools) for c in contributors):
        return None
    rows_PD = rows_of([proven_parts[c] for c in contributors], peer.tools.device)
    center_D = reduced.aggregate_D[start:stop]
    residual, tolerance = judge_center(rows_PD, center_D, tau=tau)
    wrong = residual > tolerance
    none = wrong and not bool(center_D.any())  # [A7]
    found = none and acquitted_center(rows_PD, tau=tau, share=1 / 4) is not None
    project = peer.tools.projector(reduced.projection_key, parameters.projections, parameters.size)
    errors_P = report_errors(rows_PD, center_D, project, start, reported.table.about(part), tau)
    errors = dict(zip(contributors, errors_P.tolist(), strict=True))
    return PartFinding(wrong and not none, errors, found)


def report_errors(
    rows_PD: torch.Tensor,
    center_D: torch.Tensor,
    project: Project,
    start: int,
    said: ReportNumbers,
    tau: float,
) -> NDArray[np.float64]:
    """Relative error of each contributor's report about one part, against the report that its committed row gives (SPEC V1).

    `said` has a row per contributor, instead of per part."""
    right = right_reports(rows_PD, center_D, project, start, tau)
    return relative_errors(said, right, np.full(len(rows_PD), tau))
