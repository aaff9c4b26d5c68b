"""Making an exhibit: the signed messages and the blobs that a ban can be recomputed from (SPEC E3)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from troth.crypto import PeerId
from troth.evidence.errors import UnprovedError
from troth.evidence.file_format import Blobs, Exhibit, PartProof, SignedMessage, signed_message
from troth.evidence.open_exhibit import open_exhibit, wrong_reporters
from troth.protocol.core.records import Judgement, StepRecord
from troth.protocol.core.run import Run
from troth.protocol.core.state import AuditRecord, Disclosure, Outcome
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Announced, Kind
from troth.protocol.wire.primitives import Primitives
from troth.training.work import Training


@dataclass(frozen=True)
class ExhibitWithBlobs:
    """An exhibit and its blobs; both are empty where a ban rests on votes alone."""

    exhibit: Exhibit | None = None
    blobs: Blobs = field(default_factory=dict)


def make_exhibit(
    run: Run, judgement: Judgement, seen: Outcome[Training], before: Sequence[StepRecord]
) -> ExhibitWithBlobs:
    """Make the exhibit of this judgement, and open it as a stranger would; keep it only if it holds. Nothing shows that a message
    was never sent, and the accused may be gone from the record. `before` are the records of the steps before."""
    made = _exhibit_of(judgement, seen)
    disputed = next((record for record in (*before, seen.record) if record.step == judgement.step), None)
    if made.exhibit is None or disputed is None:
        return ExhibitWithBlobs()
    try:
        reporters = wrong_reporters(seen.record, judgement.step)
        open_exhibit(run, made.exhibit, judgement, disputed, reporters, Primitives())
    except UnprovedError:
        return ExhibitWithBlobs()
    return made


def _exhibit_of(judgement: Judgement, seen: Outcome[Training]) -> ExhibitWithBlobs:
    """As far as this peer holds the messages: an observer, or a member that came back since, has none."""
    match judgement.kind:
        case Kind.REPORT | Kind.AGGREGATE:
            wanted = (judgement.attempt, judgement.part)
            found = next((one for one in seen.disclosed if (one.attempt, one.part) == wanted), None)
            return ExhibitWithBlobs() if found is None else _of_part(judgement, found)
        case Kind.GRADIENT | Kind.AUDITED_REPORT | Kind.COVER:
            kept = seen.state.audit_records.get(judgement.step)
            return ExhibitWithBlobs() if kept is None else _of_audit(judgement, kept, seen.record)
        case _:
            return ExhibitWithBlobs()  # an equivocation proves itself, and a deviation rests on votes


def _of_part(judgement: Judgement, found: Disclosure) -> ExhibitWithBlobs:
    """Of a report its sender's own messages; of an aggregate all that its owner had before it."""
    whole = judgement.kind == Kind.AGGREGATE
    senders = sorted(found.proven_parts) if whole else [PeerId(judgement.target)]
    proven_parts = {sender: found.proven_parts[sender] for sender in senders}
    exhibit = Exhibit(
        attempt=found.attempt,
        commits=_signed(found.commits, senders),
        clips=[signed_message(found.clip)] if whole else [],
        reports=_signed(found.reports, senders),
        accuses=[signed_message(found.accuse)] if whole and found.accuse is not None else [],
        projection_key=found.projection_key.hex(),
        aggregates=[aggregate.hex() for aggregate in found.aggregates],
        parts=[
            PartProof(sender.hex(), proven.blob.digest.hex(), [node.hex() for node in proven.path])
            for sender, proven in proven_parts.items()
        ],
    )
    blobs = [*(proven.blob for proven in proven_parts.values()), found.center]
    return ExhibitWithBlobs(exhibit, {blob.digest: blob for blob in blobs})


def _of_audit(judgement: Judgement, kept: AuditRecord[Training], record: StepRecord) -> ExhibitWithBlobs:
    """Commitments, and what was said about the aggregates. The gradient itself is recomputed from its seed."""
    target = PeerId(judgement.target)
    if judgement.kind == Kind.GRADIENT:
        commit = signed_message(kept.accused(target, Kind.GRADIENT))
        return ExhibitWithBlobs(Exhibit(0, [commit], [], [], [], "", [], []))
    if target in kept.probed:
        return ExhibitWithBlobs()  # it was accused of a report that it never sent (SPEC J5)
    cover = judgement.kind == Kind.COVER
    reporters = sorted(wrong_reporters(record, judgement.step)) if cover else [PeerId(judgement.target)]
    blobs = Blob.cut(kept.aggregate_D, kept.bounds)
    owner = PeerId(judgement.target)
    exhibit = Exhibit(
        attempt=kept.attempt,
        commits=_signed(kept.commits, reporters),
        clips=_signed(kept.clips, [owner]) if cover else [],
        reports=_signed(kept.reports, sorted(kept.reports) if cover else reporters),
        accuses=_signed(kept.accuses, [owner]) if cover else [],
        projection_key=kept.projection_key.hex(),
        aggregates=[blob.digest.hex() for blob in blobs],
        parts=[],
    )
    return ExhibitWithBlobs(exhibit, {blob.digest: blob for blob in blobs})


def _signed(announced: Mapping[PeerId, Announced], senders: Iterable[PeerId]) -> list[SignedMessage]:
    return [signed_message(announced[sender]) for sender in senders]
