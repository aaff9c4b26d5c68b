"""What a ban can be recomputed from: what was signed, and the blobs that it was about (SPEC E3)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from troth.crypto import Digest, PeerId
from troth.evidence.form import Exhibit, ShownPart, SignedMessage, signed_message
from troth.evidence.testimony import wrong_reporters
from troth.protocol.core.records import Judgement, StepRecord
from troth.protocol.core.state import AuditRecord, Disclosure, Outcome
from troth.protocol.wire.messages import Announced, Kind
from troth.protocol.wire.primitives import Primitives, to_blobs
from troth.training.work import Training

Blobs = Mapping[Digest, bytes]


@dataclass(frozen=True)
class Shown:
    """An exhibit, with the blobs that belong to it."""

    exhibit: Exhibit | None = None
    blobs: Blobs = field(default_factory=dict)


def show(judgement: Judgement, seen: Outcome[Training]) -> Shown:
    """As far as this peer has what it takes: whoever only looked on, or came back since, has nothing to show."""
    match judgement.kind:
        case Kind.REPORT | Kind.AGGREGATE:
            slot = (judgement.attempt, judgement.part)
            found = next((one for one in seen.disclosed if (one.attempt, one.part) == slot), None)
            return Shown() if found is None else _of_part(judgement, found)
        case Kind.GRADIENT | Kind.AUDITED_REPORT | Kind.COVER:
            kept = seen.state.audit_records.get(judgement.step)
            return Shown() if kept is None else _of_audit(judgement, kept, seen.record)
        case _:
            return Shown()  # two messages prove themselves, and what other hardware explains rests on votes


def _of_part(judgement: Judgement, found: Disclosure) -> Shown:
    """Of a report its sender's own messages; of an aggregate all that its owner had before it."""
    whole = judgement.kind == Kind.AGGREGATE
    senders = sorted(found.proven_parts) if whole else [PeerId(judgement.target)]
    parcels = {sender: found.proven_parts[sender] for sender in senders}
    digest = Primitives().digest
    named = {sender: digest(proven.blob) for sender, proven in parcels.items()}
    exhibit = Exhibit(
        attempt=found.attempt,
        commits=_signed(found.commits, senders),
        clips=[signed_message(found.clip)] if whole else [],
        reports=_signed(found.reports, senders),
        accuses=[signed_message(found.accuse)] if whole and found.accuse is not None else [],
        projection_key=found.projection_key.hex(),
        aggregates=[aggregate.hex() for aggregate in found.aggregates],
        parcels=[
            ShownPart(sender.hex(), named[sender].hex(), [node.hex() for node in proven.path])
            for sender, proven in parcels.items()
        ],
    )
    blobs = {named[sender]: proven.blob for sender, proven in parcels.items()}
    return Shown(exhibit, {**blobs, digest(found.center): found.center})


def _of_audit(judgement: Judgement, kept: AuditRecord[Training], record: StepRecord) -> Shown:
    """The gradient itself is recomputed from its seed."""
    if judgement.kind == Kind.GRADIENT:
        commits = _signed(kept.commits, [PeerId(judgement.target)])
        return Shown(Exhibit(0, commits, [], [], [], "", [], []))
    cover = judgement.kind == Kind.COVER
    reporters = sorted(wrong_reporters(record, judgement.step)) if cover else [PeerId(judgement.target)]
    blobs = to_blobs(kept.aggregate_D, kept.bounds)
    digests = [Primitives().digest(blob) for blob in blobs]
    owner = PeerId(judgement.target)
    exhibit = Exhibit(
        attempt=kept.attempt,
        commits=_signed(kept.commits, reporters),
        clips=_signed(kept.clips, [owner]) if cover else [],
        reports=_signed(kept.reports, sorted(kept.reports) if cover else reporters),
        accuses=_signed(kept.accuses, [owner]) if cover else [],
        projection_key=kept.projection_key.hex(),
        aggregates=[digest.hex() for digest in digests],
        parcels=[],
    )
    return Shown(exhibit, dict(zip(digests, blobs, strict=True)))


def _signed(said: Mapping[PeerId, Announced], senders: Iterable[PeerId]) -> list[SignedMessage]:
    return [signed_message(said[sender]) for sender in senders]
