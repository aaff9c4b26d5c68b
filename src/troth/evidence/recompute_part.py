"""Recomputing a ban over one part: nothing but arithmetic on signed messages and their blobs (SPEC E3, T6, T7)."""

import numpy as np
from numpy.typing import NDArray

from troth.aggregation import judge_center
from troth.crypto import Digest, PeerId
from troth.evidence.errors import RecomputeError
from troth.evidence.file_format import Blobs
from troth.evidence.open_exhibit import OpenedExhibit
from troth.evidence.verify import Proof
from troth.protocol.core.parts import ProvenPart, opens, part_bounds, rows_of
from troth.protocol.core.scales import part_taus
from troth.protocol.step.audits import report_errors
from troth.protocol.step.reports import CONVICT_AT, COVER_AT, Project
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Kind
from troth.protocol.wire.primitives import Primitives
from troth.protocol.wire.report_table import ReportTable


def judge_part(proof: Proof, blobs: Blobs) -> bool:
    """Whether the accused is guilty: of a wrong report about the part, or of a wrong aggregate of it."""
    shown, part = exhibit_of(proof), proof.judgement.part
    assert part is not None
    bounds = part_bounds(proof.run.parameters.size, shown.step.parts)
    proven_parts = {
        peer: ProvenPart(blob_of(blobs, digest), path) for peer, (digest, path) in shown.proven_parts.items()
    }
    for peer, proven in proven_parts.items():
        if not opens(proven, part, bounds, shown.roots[peer]):
            raise RecomputeError(f"a part is not what {peer.hex()} committed to")
    reporters = sorted(proven_parts)
    rows_PD = rows_of([proven_parts[peer] for peer in reporters])
    center_D, tau = blob_of(blobs, shown.aggregates[part]).numbers_D(), part_taus(shown.step.tau, bounds)[part]
    said = ReportTable(tuple(shown.reports[peer] for peer in reporters)).about(part)
    errors_P = report_errors(rows_PD, center_D, project_of(proof), bounds[part], said, tau)
    if proof.judgement.kind == Kind.REPORT:
        return bool(errors_P[0] > CONVICT_AT)
    residual, tolerance = judge_center(rows_PD, center_D, tau=tau)
    wrong = residual > tolerance and bool(center_D.any())  # zeros say that there is none, which is no lie [A7]
    return wrong or covers(shown, part, reporters, errors_P)


def covers(shown: OpenedExhibit, part: int, reporters: list[PeerId], errors_P: NDArray[np.float64]) -> bool:
    """Whether the owner said nothing about a report that is so wrong that the owner must have noticed."""
    passed = {(part, peer) for peer, error in zip(reporters, errors_P, strict=True) if error > COVER_AT}
    return shown.named is not None and bool(passed - shown.named)


def exhibit_of(proof: Proof) -> OpenedExhibit:
    """The opened exhibit, which a recomputation needs."""
    if proof.exhibit is None:
        raise RecomputeError("the file holds votes only, and nothing to recompute from")
    return proof.exhibit


def project_of(proof: Proof) -> Project:
    """The projections of the disputed step."""
    shown, parameters = exhibit_of(proof), proof.run.parameters
    assert shown.projection_key is not None
    return Primitives().projector(shown.projection_key, parameters.projections, parameters.size)


def blob_of(blobs: Blobs, digest: Digest) -> Blob:
    """The blob with this digest; the file beside the evidence is not believed."""
    if digest not in blobs:
        raise RecomputeError(f"blob {digest.hex()[:16]} is not beside the file")
    if blobs[digest].digest != digest:
        raise RecomputeError(f"blob {digest.hex()[:16]} is damaged")
    return blobs[digest]
