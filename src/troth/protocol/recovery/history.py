"""Certified records, followed from a state that this peer knows: one voice is enough, since nothing is believed (SPEC B2).

A quorum of its own members signed each record, and the last one holds the digest of the model.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Generic, NamedTuple, TypeVar
from weakref import ref

import msgspec

from troth.crypto import Digest, PeerId
from troth.protocol.core.records import (
    StepRecord,
    chained_state,
    decode_record,
    encode_record,
    names_content,
    record_bytes_to_sign,
)
from troth.protocol.core.roles import PendingAudits
from troth.protocol.core.roster import Roster, scales_after
from troth.protocol.core.run import Run
from troth.protocol.core.scales import Scales
from troth.protocol.core.standing import standing_digest
from troth.protocol.core.state import LastRecord, State
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.primitives import Primitives

T = TypeVar("T")


@dataclass(frozen=True)
class Followed:
    """Records that continue a known state, and the roster after them."""

    records: tuple[StepRecord, ...]
    roster: Roster

    @property
    def step(self) -> int:
        """Step after the last record."""
        return self.records[-1].step + 1

    @property
    def tip(self) -> bytes:
        return encode_record(self.records[-1])


class _Place(NamedTuple):
    """Where a history stands after some of its records."""

    model: Digest
    incarnation: int
    roster: Roster
    scales: Scales
    seeds: Digest
    roles: Digest


_Way = list[
    tuple[CertifiedRecord, StepRecord, _Place]
]  # records that were followed, each with the place that it led to


class FollowedBefore(Generic[T]):
    """The longest histories that were followed from the last two states. Members show the same records in every step, and one
    more: a peer that verified all of them each time would fall behind a quick run for ever."""

    def __init__(self) -> None:
        self._ways: deque[tuple[ref[State[T]], Digest, _Way]] = deque(maxlen=2)  # not the states: they are large

    def of(self, known: State[T], model: Digest) -> _Way:
        return next((way for state, name, way in self._ways if state() is known and name == model), [])

    def put(self, known: State[T], model: Digest, way: _Way) -> None:
        """Keep a history, if it is longer than the one kept: liars that show short ones must not have the rest verified anew."""
        before = self.of(known, model)
        if len(way) > len(before):
            kept = [one for one in self._ways if one[2] is not before]
            self._ways = deque([*kept, (ref(known), model, way)], maxlen=2)


def follow(
    run: Run,
    known: State[T],
    model: Digest,
    certified: Sequence[CertifiedRecord],
    tools: Primitives,
    before: FollowedBefore[T] | None = None,
) -> Followed | None:
    """Records, if they continue this state and its model: each follows from the one before, and a quorum of its members signed
    it. A step that was made again has two records: those that continue the other one lead elsewhere (SPEC B5).

    Those that are the same, signatures included, as the ones followed `before` are not verified again."""
    known_way = [] if before is None else before.of(known, model)
    pairs = zip(known_way, certified, strict=False)
    way = [passed for passed, _ in takewhile(lambda pair: pair[0][0] == pair[1], pairs)]
    first = _Place(model, known.incarnation, known.roster, known.scales, known.earlier_randomness, known.randomness)
    for signed in certified[len(way) :]:
        place = _place_after(run, known.step + len(way), way[-1][2] if way else first, signed, tools)
        if place is None:
            return None
        way.append((signed, *place))
    if before is not None:
        before.put(known, model, way)
    return Followed(tuple(record for _, record, _ in way), way[-1][2].roster) if way else None


def _place_after(
    run: Run, step: int, place: _Place, signed: CertifiedRecord, tools: Primitives
) -> tuple[StepRecord, _Place] | None:
    """The next record of a history that stands here, and where it leads; None if it does not continue it."""
    record = record_of(signed)
    if record is None:
        return None
    model, incarnation, roster, scales, seeds, roles = place
    here = (step, roster.members, model, seeds, scales.tau, scales.updates + record.updated)
    if flaw_of(run, signed, record, Continued(*here, incarnation), roster, tools) is not None:
        return None
    if record.standing != standing_digest(record, roster, scales, roles, run):
        return None  # [J8]
    return record, _Place(
        Digest(record.state_after),
        record.incarnation,
        roster.after(record),
        scales_after(scales, record, roster, run),
        seeds=roles,
        roles=Digest(record.randomness),
    )


class Continued(NamedTuple):
    """What a record has to say to continue a history."""

    step: int
    members: tuple[PeerId, ...]
    state_before: Digest
    seed_randomness: Digest
    tau: float
    updates: int
    incarnation: int  # or a later one


def flaw_of(
    run: Run, signed: CertifiedRecord, record: StepRecord, here: Continued, roster: Roster, tools: Primitives
) -> str | None:
    """Why a record does not continue a history of which this is the end, or is not certified; None if it does and is."""
    for field, wanted in here._asdict().items():
        said = getattr(record, field)
        if said < wanted if field == "incarnation" else said != wanted:
            return f"its {field.replace('_', ' ')} does not continue the records before it"
    if record.changed != roster.changed:
        return "it does not follow the last change of the members"
    if not has_quorum(run, signed, record, roster, tools):  # what follows takes seconds for the longest record
        return f"fewer than {roster.quorum} of its {len(roster.members)} members signed it"
    if (refusal := roster.refuses(record)) is not None:
        return refusal
    return None if names_state(run, record) else "it does not name the state after it as it has to"


def names_state(run: Run, record: StepRecord) -> bool:
    """Tell whether a record names the state after it as it has to: by content, or chained (SPEC U5)."""
    every, returned = run.parameters.content_every, bool(record.returned or record.admitted)
    if record.content != (
        record.closing or names_content(every, record.step, updated=record.updated, returned=returned)
    ):
        return False
    before, aggregates = Digest(record.state_before), Digest(record.aggregates)
    return record.content or record.state_after == chained_state(before, aggregates, record.factor, record.updates)


def has_quorum(run: Run, signed: CertifiedRecord, record: StepRecord, roster: Roster, tools: Primitives) -> bool:
    """Tell whether a quorum of the roster's members signed the record (SPEC U2). Looks at no more signatures than that takes:
    anyone may show a record that nobody signed."""
    signers, digest, missing = roster.signers, tools.digest(signed.record), roster.quorum
    left = [(peer, said) for peer, said in signed.signatures.items() if peer in signers]
    while 0 < missing <= len(left):
        peer, said = left.pop()
        member = PeerId(peer)
        right = tools.verify(signers[member], record_bytes_to_sign(run.id, record.step, member, digest), said)
        missing -= right
    return missing <= 0


def state_after(
    run: Run, state: State[T], followed: Followed, training: T, model: Digest, tools: Primitives
) -> State[T]:
    """Common state after the records followed. Audit records come from observing; of those that were here before, the ones stay
    that audits still need: they may be dealt to this peer (SPEC R7, K1). `model` is the digest of `training`, which may be
    another one than the last record names."""
    scales, roster = state.scales, state.roster
    for record in followed.records:
        before_last, scales, roster = roster, scales_after(scales, record, roster, run), roster.after(record)
    last = followed.records[-1]
    pending = PendingAudits.after(last)
    needed = pending.owed_steps | {last.step - 1}
    before = followed.records[-2].randomness if len(followed.records) > 1 else state.randomness
    return State(
        step=last.step + 1,
        roster=followed.roster,
        training=training,
        model=model,
        randomness=Digest(last.randomness),
        earlier_randomness=Digest(before),
        scales=scales,
        pending_audits=pending,
        audit_records={step: kept for step, kept in state.audit_records.items() if step in needed},
        incarnation=last.incarnation,
        last=LastRecord.of(last, before_last, tools),
    )


def record_of(signed: CertifiedRecord) -> StepRecord | None:
    try:
        return decode_record(signed.record)
    except msgspec.MsgspecError:
        return None


def step_of(signed: CertifiedRecord) -> int:
    """Step of a record that was checked before."""
    return decode_record(signed.record).step
