"""Recomputing another member's work: an auditor's check of a gradient, and a juror's of a part."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from troth.clip.blocks import Code
from troth.clip.centered_clip import residual_tolerance, slack
from troth.clip.fast import acquitted_center
from troth.clip.rounded_center import CONVICT_ROUNDING, acquits
from troth.crypto import Digest, PeerId
from troth.protocol.core.parts import Bounds, CommittedParts, ProvenPart, commit_parts, opens, rows_of
from troth.protocol.core.roles import gradient_seed
from troth.protocol.core.roster import part_taus
from troth.protocol.core.state import AuditRecord, Peer
from troth.protocol.step.attempt import Attempt, Reduced, Reported
from troth.protocol.wire.messages import Center, ChargeKind, Commit, Malformed, Report, ReportNumbers
from troth.protocol.wire.primitives import Projector, ReportTable, row_norms

# Reports of contributors about their gradient and the aggregate, and the tolerance between two of them.


# P parts, R rows, K projections, D coordinates

# `Primitives.project` with its first arguments given: start of the vectors, and the vectors. A `Projector` may do more at once.
Project = Projector | Callable[[int, NDArray[np.float64]], NDArray[np.float64]]

CONVICT_AT = 1e-9  # relative error of a report above which a juror convicts …
ACCUSE_AT = 2e-9  # … an auditor or owner accuses: twice as much, so that no honest accuser finds itself alone …
COVER_AT = 4e-9  # … and an owner that did not name the reporter is guilty of covering (SPEC T7)
_BLOCK = 1 << 18  # coordinates at a time: float64 copies of whole gradients would take too much memory


def make_report(own: CommittedParts, aggregate_D: Tensor, project: Project, taus: Iterable[float]) -> ReportNumbers:
    """`‖g[p]‖`, `norm = ‖g[p] − ĝ[p]‖` and `s_k = ⟨z_k[p], (g[p] − ĝ[p])·min(1, τ_p/norm)⟩` in float64 (SPEC A5)."""
    tau_P = np.fromiter(taus, np.float64)
    if isinstance(project, Projector) and (found := project.differences(own.numbers_D[None], aggregate_D, own.bounds)):
        lengths_P1, squares_P1, products_P1K = found.lengths_SP, found.squares_SP, found.products_SPK
        return _clipped(np.sqrt(lengths_P1[:, 0]), squares_P1[:, 0], products_P1K[:, 0], tau_P)
    numbers_1D, center_D = own.numbers_D[None].cpu().numpy(), aggregate_D.cpu().numpy()
    if len(center_D) <= _BLOCK:  # one subtraction for all parts
        away_1D = np.subtract(numbers_1D, center_D, dtype=np.float64)
        spans = [(start, away_1D[:, start:stop]) for start, stop in pairwise(own.bounds)]
        squares = [np.einsum("rc,rc->r", away_1C, away_1C) for _, away_1C in spans]
        products = [project(start, away_1C) for start, away_1C in spans]
        return _clipped(own.part_lengths, np.concatenate(squares), np.concatenate(products) + 0.0, tau_P)
    squares, products = [], []
    for start, stop in pairwise(own.bounds):
        square_R, products_RK = _differences(numbers_1D[:, start:stop], center_D[start:stop], project, start)
        squares.append(square_R)
        products.append(products_RK)
    return _clipped(own.part_lengths, np.concatenate(squares), np.concatenate(products), tau_P)


def right_reports(rows_RD: Tensor, center_D: Tensor, project: Project, start: int, tau: float) -> ReportNumbers:
    """Right reports of all contributors about one part, which begins at `start`: a row per contributor, instead of per part."""
    tau_R, whole = np.full(len(rows_RD), tau), (0, len(center_D))
    if isinstance(project, Projector) and (found := project.differences(rows_RD, center_D, whole, start)):
        return _clipped(np.sqrt(found.lengths_SP[0]), found.squares_SP[0], found.products_SPK[0], tau_R)
    squares_R, products_RK = _differences(rows_RD.cpu().numpy(), center_D.cpu().numpy(), project, start)
    lengths_R = row_norms(rows_RD.cpu().numpy())
    return _clipped(lengths_R, squares_R, products_RK, tau_R)


def _differences(
    rows_RD: NDArray[np.float32], center_D: NDArray[np.float32], project: Project, start: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Squared distances of rows from the centre, and projections of the differences, unclipped."""
    squares_R, products_RK = np.zeros(len(rows_RD)), np.zeros((len(rows_RD), 1))
    for first in range(0, len(center_D), _BLOCK):
        block = slice(first, first + _BLOCK)
        away_RC = np.subtract(rows_RD[:, block], center_D[block], dtype=np.float64)
        squares_R += np.einsum("rc,rc->r", away_RC, away_RC)  # not BLAS, whose threads would wait for each other
        products_RK = products_RK + project(start + first, away_RC)
    return squares_R, products_RK


def _clipped(
    lengths_R: NDArray[np.float64],
    squares_R: NDArray[np.float64],
    products_RK: NDArray[np.float64],
    tau_R: NDArray[np.float64],
) -> ReportNumbers:
    norms_R = np.sqrt(squares_R)
    return ReportNumbers(lengths_R, norms_R, products_RK * (tau_R / np.maximum(norms_R, tau_R))[:, None])


def relative_errors(said: ReportNumbers, right: ReportNumbers, tau_P: NDArray[np.float64]) -> NDArray[np.float64]:
    """Largest difference in each row: lengths and norms relative to themselves, projections to `min(norm, τ)` (SPEC D2, V1)."""
    off_length_P = np.abs(said.lengths_P - right.lengths_P)
    off_norm_P = np.abs(said.norms_P - right.norms_P)
    off_P = np.abs(said.projections_PK - right.projections_PK).max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # Where only zero is right, any difference is infinitely large.
        length_error_P = np.where(off_length_P == 0, 0.0, off_length_P / right.lengths_P)
        norm_error_P = np.where(off_norm_P == 0, 0.0, off_norm_P / right.norms_P)
        error_P = np.where(off_P == 0, 0.0, off_P / np.minimum(right.norms_P, tau_P))
    return np.maximum(length_error_P, np.maximum(norm_error_P, error_P))


T = TypeVar("T")

# P contributors, D coordinates


@dataclass(frozen=True)
class AuditFinding:
    """Result of recomputing a member's gradient; auditors and jurors draw their own conclusions."""

    root: Digest  # of the gradient that was recomputed
    fits: bool | None  # it is the committed one; None: another class computes other bits anyway
    report_error: float  # relative error of the report; infinite where there is nothing to compare
    deviation: float | None  # of the report, in units of h, the run's agreed deviation; None: a run of one class
    covered: tuple[int, ...] = ()  # parts whose owners must have seen that the report is wrong

    def accusation(self, *, bits_count: bool) -> ChargeKind | None:
        """An auditor's accusation, if any; of bits only where a quorum of jurors can compare them (SPEC D1–D3)."""
        if self.deviation is not None and self.deviation > ACCUSE:
            return ChargeKind.DEVIATION
        if self.fits is None or not bits_count:
            return None
        if not self.fits:
            return ChargeKind.GRADIENT
        return ChargeKind.AUDITED_REPORT if self.report_error > ACCUSE_AT else None

    def guilty_of(self, kind: ChargeKind) -> bool | None:
        """A juror's opinion on a charge of this kind; None where it cannot tell."""
        if kind == ChargeKind.DEVIATION:
            return self.deviation is not None and self.deviation > CONVICT
        if self.fits is None:
            return None
        return not self.fits if kind == ChargeKind.GRADIENT else self.fits and self.report_error > CONVICT_AT


async def audit(peer: Peer[T], kept: AuditRecord[T], target: PeerId) -> AuditFinding:
    """Recompute the target's Merkle root and report of a recorded step from its public seed (SPEC D1–D3)."""
    seed = gradient_seed(kept.seed_randomness, target)
    parts = commit_parts(await peer.work.recompute(kept.training, seed), kept.bounds, peer.tools, peer.code, seed)
    commit = kept.accused(target, ChargeKind.GRADIENT).message
    assert isinstance(commit, Commit)
    if target in kept.probed:  # its gradient went into nothing, and it reported nothing [J6]
        return AuditFinding(parts.root, parts.root == commit.root, 0.0, None)
    report = kept.reports[target].message
    assert isinstance(report, Report)
    parameters, taus = peer.run.parameters, np.array(part_taus(kept.tau, kept.bounds))
    comparable = parameters.deviation is None or commit.hardware == peer.work.hardware_class()
    fits = parts.root == commit.root if comparable else None
    if fits is False and parameters.deviation is None:
        return AuditFinding(parts.root, fits, math.inf, None)
    project = peer.tools.projector(kept.projection_key, parameters.projections, parameters.size)
    right = make_report(parts, kept.aggregate_D, project, taus)
    said = ReportNumbers.unpack(report.numbers, len(kept.bounds) - 1, parameters.projections)
    assert not isinstance(said, Malformed), "a contributor with a report of the wrong size is out (SPEC N1)"
    deviation = None
    if parameters.deviation is not None:
        usual_P = usual_norms(kept, parameters.projections)
        far = deviations(said, right, parts.numbers_D, kept.bounds, taus, usual_P).max()
        deviation = float(far) / parameters.deviation
    errors_P = relative_errors(said, right, taus)
    covered = tuple(int(part) for part in np.flatnonzero(errors_P > COVER_AT)) if fits else ()  # (SPEC T7)
    return AuditFinding(parts.root, fits, float(errors_P.max()), deviation, covered)


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
    about = part, bounds
    if not all(
        c in proven_parts and opens(proven_parts[c], *about, roots[c], peer.tools, peer.code) for c in contributors
    ):
        return None
    rows_PD = rows_of([proven_parts[c] for c in contributors], peer.tools.device, peer.code)
    project = peer.tools.projector(reduced.projection_key, parameters.projections, parameters.size)
    said, center_D = reported.table.about(part), reduced.aggregate_D[start:stop]
    return judge_part(contributors, rows_PD, center_D, project, start, said, tau, peer.code)


def judge_part(
    reporters: Sequence[PeerId],
    rows_PD: Tensor,
    center_D: Tensor,
    project: Project,
    start: int,
    said: ReportNumbers,
    tau: float,
    code: Code,
) -> PartFinding:
    """Judge a part's aggregate, and the reports about it, by the rows that the reporters committed to: as a juror does, and as
    whoever recomputes a ban (SPEC T6, E3)."""
    wrong = not acquits(rows_PD, center_D, tau=tau, code=code)
    none = wrong and not bool(center_D.any())  # zeros say that there is no aggregate, which is no lie [A7]
    found = none and acquitted_center(rows_PD, tau=tau, code=code, share=1 / 4) is not None
    errors_P = report_errors(rows_PD, center_D, project, start, said, tau)
    return PartFinding(wrong and not none, dict(zip(reporters, errors_P.tolist(), strict=True)), found)


def report_errors(
    rows_PD: Tensor, center_D: Tensor, project: Project, start: int, said: ReportNumbers, tau: float
) -> NDArray[np.float64]:
    """Relative error of each contributor's report about one part, against the report that its committed row gives (SPEC V1).

    `said` has a row per contributor, instead of per part."""
    right = right_reports(rows_PD, center_D, project, start, tau)
    return relative_errors(said, right, np.full(len(rows_PD), tau))


# Checks of reports from announced numbers alone, so that no two honest peers fall on different sides (SPEC V2).
#
# The definition is `sum_vanishes` and `too_long`: sums by `math.fsum`, which rounds once, and single correctly rounded
# operations. `suspicious_parts` gives the same answers faster: plain float64 sums decide where they are farther from the
# threshold than rounding could ever carry them, and the definition decides the rest.


# C contributors, P parts, K projections, D coordinates

_LONGEST = 2.5  # an honest RMS of 16 projections exceeds 2.5 times the length with probability 3·10⁻¹⁴
_FAR = 2.0  # a plain sum of so few numbers is off by 10⁻¹⁴ of them; the tolerance is 10⁻¹² of them or more
_NEAR = 1 - 1e-9  # lengths have no cancellation: plain arithmetic is off by 10⁻¹⁴ of them


def suspicious_parts(table: ReportTable, centers: Sequence[Center], taus: Sequence[float], bounds: Bounds) -> set[int]:
    """Parts whose reports do not add up to zero, or hold one that is longer than it can be.

    Tolerances follow the aggregates' announced norms and roundings, which fit exactly the blobs that everyone holds (SPEC A3):
    else an owner could announce 10⁹ and put its aggregate anywhere.
    """
    norms_CP, tau_P, size_P = table.norms_CP, np.asarray(taus), np.diff(bounds)
    slacks = [center_slack(center, size) for center, size in zip(centers, size_P.tolist(), strict=True)]
    epsilon_P = np.asarray(slacks)
    moved_CP = np.minimum(2 * tau_P, epsilon_P * tau_P / np.maximum(norms_CP - epsilon_P, tau_P))
    clipped_CP = np.minimum(norms_CP, tau_P)
    tolerance_P = moved_CP.sum(axis=0) + 2.0**-40 * clipped_CP.sum(axis=0)
    near_P = table.rms_of_sums_P <= tolerance_P / _FAR
    clear_P = near_P & (table.rms_CP <= _LONGEST * clipped_CP * _NEAR).all(axis=0)
    if clear_P.all():
        return set()
    unclear = np.flatnonzero(~clear_P).tolist()
    return {p for p in unclear if _suspicious(p, table.reports, centers[p], taus[p], int(size_P[p]))}


def center_slack(center: Center, size: int) -> float:
    """How far from the clipped centre an aggregate may be."""
    return slack(center.norm, size, CONVICT_ROUNDING * center.rounding)


def _suspicious(part: int, reports: Sequence[ReportNumbers], center: Center, tau: float, size: int) -> bool:
    vanishes = sum_vanishes(part, reports, center, tau, size)
    return not vanishes or any(too_long(part, report, tau) for report in reports)


def sum_vanishes(part: int, reports: Sequence[ReportNumbers], center: Center, tau: float, size: int) -> bool:
    """Tell whether the clipped differences from the aggregate add up to zero, as they do at the clipped centre only."""
    sums = [math.fsum(column) for column in zip(*(row.projections_PK[part].tolist() for row in reports), strict=True)]
    norms = [float(row.norms_P[part]) for row in reports]
    rounding = CONVICT_ROUNDING * center.rounding
    return _rms(sums) <= residual_tolerance(center.norm, norms, tau=tau, size=size, rounding=rounding)


def too_long(part: int, report: ReportNumbers, tau: float) -> bool:
    """Tell whether projections are longer than the clipped vector that they are of can be."""
    return _rms(report.projections_PK[part].tolist()) > _LONGEST * min(float(report.norms_P[part]), tau)


def _rms(numbers: list[float]) -> float:
    return math.sqrt(math.fsum(number * number for number in numbers) / len(numbers))


# The tolerant audit across classes of hardware: deviation of a report from the auditor's own (SPEC D3).


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
        off_P = np.maximum(_rms_of_rows(away_PK), np.abs(said.norms_P - own.norms_P))
        off_P = np.maximum(off_P, np.abs(said.lengths_P - own.lengths_P))
        scale_P = np.maximum(_scales(own_gradient_D, bounds), usual_P)
        deviation_P = np.where(off_P == 0, 0.0, off_P / scale_P)
    return np.where(np.isnan(deviation_P), np.inf, deviation_P)


def _unclipped(report: ReportNumbers, tau_P: NDArray[np.float64]) -> NDArray[np.float64]:
    return report.projections_PK * np.maximum(1.0, report.norms_P / tau_P)[:, None]


def _rms_of_rows(numbers_PK: NDArray[np.float64]) -> NDArray[np.float64]:
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
