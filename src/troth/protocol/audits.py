"""Recomputing another's work from public inputs: what validators do every step, and jurors in a trial."""

from dataclasses import dataclass
from typing import TypeVar

from troth.crypto import PeerId
from troth.protocol.messages import Commit, Malformed, Report, ReportNumbers
from troth.protocol.parts import commit_parts
from troth.protocol.reports import make_report, reports_differ
from troth.protocol.roles import gradient_seed
from troth.protocol.state import Kept, Peer

T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """What the recomputation showed; `reason` is empty when everything fits."""

    target: PeerId
    reason: str

    @property
    def guilty(self) -> bool:
        return bool(self.reason)


async def audit(peer: Peer[T], kept: Kept[T], target: PeerId, tolerance: float) -> Finding:
    """Recompute the target's gradient root and reports of the kept step from its public seed (SPEC D1, D2)."""
    seed = gradient_seed(kept.seed_randomness, target)
    gradient_D = await peer.work.recompute(kept.training, seed)
    commit, report = kept.commits[target].message, kept.reports[target].message
    assert isinstance(commit, Commit)
    assert isinstance(report, Report)
    if commit_parts(gradient_D, kept.bounds, peer.tools).root != commit.root:
        return Finding(target, "the gradient it committed to does not follow from its seed")
    parameters = peer.run.parameters
    signs_KD = peer.tools.projection(kept.projection_key, parameters.projections, parameters.size)
    right = make_report(gradient_D, kept.aggregate_D, signs_KD, kept.bounds, parameters)
    said = ReportNumbers.unpack(report.numbers, len(kept.bounds) - 1, parameters.projections)
    if isinstance(said, Malformed) or reports_differ(said, right, kept.bounds, parameters, tolerance):
        return Finding(target, "its report does not follow from its gradient")
    return Finding(target, "")
