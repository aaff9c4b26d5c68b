"""Recomputing another's work: a validator's audit of a gradient, and a juror's of a part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from troth.aggregation import clip_residual, residual_tolerance
from troth.crypto import PeerId
from troth.protocol.attempt import Attempt, Reduced, Reported
from troth.protocol.messages import Commit, Kind, Malformed, Report, ReportNumbers
from troth.protocol.parts import Parcel, commit_parts, opens, rows_of
from troth.protocol.reports import CONVICT_AT, COVER_AT, make_report, part_taus, relative_errors
from troth.protocol.roles import gradient_seed
from troth.protocol.state import Kept, Peer

T = TypeVar("T")

# P contributors, D coordinates


@dataclass(frozen=True)
class Finding:
    """What an audit of a gradient showed."""

    target: PeerId
    kind: Kind | None  # what to accuse it of; None when everything fits
    covered: tuple[int, ...] = ()  # parts whose owners must have seen that the report was wrong


async def audit(peer: Peer[T], kept: Kept[T], target: PeerId, tolerance: float) -> Finding:
    """Recompute the target's gradient root and reports of the kept step from its public seed (SPEC D1, D2)."""
    seed = gradient_seed(kept.seed_randomness, target)
    gradient_D = await peer.work.recompute(kept.training, seed)
    commit, report = kept.commits[target].message, kept.reports[target].message
    assert isinstance(commit, Commit)
    assert isinstance(report, Report)
    if commit_parts(gradient_D, kept.bounds, peer.tools).root != commit.root:
        return Finding(target, Kind.GRADIENT)
    parameters = peer.run.parameters
    signs_KD = peer.tools.projection(kept.projection_key, parameters.projections, parameters.size)
    right = make_report(gradient_D, kept.aggregate_D, signs_KD, kept.bounds, parameters)
    said = ReportNumbers.unpack(report.numbers, len(kept.bounds) - 1, parameters.projections)
    if isinstance(said, Malformed):
        return Finding(target, Kind.AUDITED_REPORT)
    errors_P = relative_errors(said, right, part_taus(kept.bounds, parameters))
    if errors_P.max() > tolerance:
        covered = tuple(int(part) for part in np.flatnonzero(errors_P > COVER_AT))  # (SPEC T7)
        return Finding(target, Kind.AUDITED_REPORT, covered)
    return Finding(target, None)


@dataclass(frozen=True)
class PartFinding:
    """What the committed blobs of a part say about its owner and its reporters."""

    aggregate_wrong: bool
    report_errors: dict[PeerId, float] = field(default_factory=dict)  # relative; empty if the blobs were not all there

    def convicts(self, reporter: PeerId) -> bool:
        return self.report_errors.get(reporter, 0.0) > CONVICT_AT

    def covered(self, named: frozenset[PeerId]) -> list[PeerId]:
        """Reporters so wrong that the owner must have seen it, and did not name."""
        return sorted(peer for peer, error in self.report_errors.items() if error > COVER_AT and peer not in named)


def examine_part(
    attempt: Attempt[T], part: int, parcels: Mapping[PeerId, Parcel], reduced: Reduced, reported: Reported
) -> PartFinding:
    """Check an aggregate and all reports about it against the blobs that contributors committed to (SPEC T6).

    A blob that is missing or does not fit its root counts against the owner: it should not have used it.
    """
    peer, roots, bounds = attempt.here.peer, attempt.roots, attempt.here.roles.bounds
    (start, stop), tau, parameters = attempt.span(part), attempt.part_tau(part), peer.run.parameters
    contributors = sorted(roots)
    if not all(c in parcels and opens(parcels[c], part, bounds, roots[c], peer.tools) for c in contributors):
        return PartFinding(aggregate_wrong=True)
    rows_PD = rows_of([parcels[c] for c in contributors])
    center_D = reduced.aggregate_D[start:stop]
    norm = float(torch.linalg.vector_norm(center_D, dtype=torch.float64))
    clipped = float(torch.linalg.vector_norm(rows_PD.double() - center_D.double(), dim=1).clamp(max=tau).sum())
    residual = float(torch.linalg.vector_norm(clip_residual(rows_PD, center_D, tau=tau)))
    wrong = residual > residual_tolerance(norm, clipped, tau=tau, peers=len(rows_PD))
    signs_KD = peer.tools.projection(reported.projection_key, parameters.projections, parameters.size)[:, start:stop]
    errors_P = report_errors(rows_PD, center_D, signs_KD, [reported.numbers[c].part(part) for c in contributors], tau)
    errors = dict(zip(contributors, errors_P.tolist(), strict=True))
    return PartFinding(wrong or abs(reduced.norms[part] - norm) > CONVICT_AT * norm, errors)


def report_errors(
    rows_PD: torch.Tensor,
    center_D: torch.Tensor,
    signs_KD: NDArray[np.float64],
    said: Sequence[ReportNumbers],
    tau: float,
) -> NDArray[np.float64]:
    """How wrong each contributor's report about one part is, relative to what its committed row makes right (SPEC V1)."""
    away_PD = rows_PD.double().numpy() - center_D.double().numpy()
    norms_P = np.sqrt(np.einsum("pd,pd->p", away_PD, away_PD))
    scale_P = tau / np.maximum(norms_P, tau)
    right = ReportNumbers(norms_P, (away_PD @ signs_KD.T) * scale_P[:, None])
    told = ReportNumbers(np.concatenate([s.norms_P for s in said]), np.concatenate([s.projections_PK for s in said]))
    return relative_errors(told, right, np.full(len(said), tau))
