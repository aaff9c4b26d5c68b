"""Certified records, followed from a state that this peer knows: one voice is enough, since nothing is believed (SPEC B2).

A quorum of its own members signed each record, and the last one holds the digest of the model.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ref

from troth.crypto import Digest
from troth.protocol.core.records import StepRecord, chained_state, encode_record, names_content
from troth.protocol.core.roles import PendingAudits
from troth.protocol.core.roster import Roster, scales_after
from troth.protocol.core.run import Run
from troth.protocol.core.scales import Scales
from troth.protocol.core.standing import standing_digest
from troth.protocol.core.state import LastRecord, State
from troth.protocol.history.record import Flaw, flaw_of, open_record, record_of
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


class HistoryEnd(NamedTuple):
    """The end of a history: what its next record has to continue."""

    step: int
    model: Digest
    incarnation: int
    roster: Roster
    scales: Scales
    seeds: Digest
    roles: Digest
    ended: bool = False

    @classmethod
    def of(cls, state: State[T], model: Digest) -> "HistoryEnd":
        """Where a peer stands in this state, with a model of this digest."""
        draws = state.earlier_randomness, state.randomness
        return cls(state.step, model, state.incarnation, state.roster, state.scales, *draws, state.closed)

    def after(self, record: StepRecord, run: Run) -> "HistoryEnd":
        """Where the record leads to."""
        return HistoryEnd(
            record.step + 1,
            Digest(record.state_after),
            record.incarnation,
            self.roster.after(record),
            scales_after(self.scales, record, self.roster, run),
            seeds=self.roles,
            roles=Digest(record.randomness),
            ended=record.ends_run,
        )

    def disagreement(self, record: StepRecord) -> str | None:
        """Why the record, whoever signed it, is not the next one; None if it may be."""
        if self.ended:
            return f"the run ended in step {self.step - 1}"
        wanted: dict[str, Any] = {
            "step": self.step,
            "members": self.roster.members,
            "state before": self.model,
            "seed randomness": self.seeds,
            "tau": self.scales.tau,
            "updates": self.scales.updates + record.updated,
        }
        wrong = [name for name, value in wanted.items() if getattr(record, name.replace(" ", "_")) != value]
        if record.incarnation < self.incarnation:
            wrong.append("incarnation")
        return f"its {wrong[0]} does not continue the records before it" if wrong else None

    def leads_to_standing(self, record: StepRecord, run: Run) -> bool:
        """Whether the record, if it is the next one, names the standing after it (SPEC J8)."""
        return record.standing == standing_digest(record, self.roster, self.scales, self.roles, run)


_Way = list[
    tuple[CertifiedRecord, StepRecord, HistoryEnd]
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
) -> Followed | Flaw:
    """Records, if they continue this state and its model: each follows from the one before, and a quorum of its members signed
    it. A step that was made again has two records: those that continue the other one lead elsewhere (SPEC B5).

    Those that are the same, signatures included, as the ones followed `before` are not verified again."""
    known_way = [] if before is None else before.of(known, model)
    pairs = zip(known_way, certified, strict=False)
    way = [passed for passed, _ in takewhile(lambda pair: pair[0][0] == pair[1], pairs)]
    here = way[-1][2] if way else HistoryEnd.of(known, model)
    for signed in certified[len(way) :]:
        record = open_next(run, here, signed, tools)
        if isinstance(record, Flaw):
            return record
        if not here.leads_to_standing(record, run):
            return Flaw(f"the record of step {record.step}: it names another standing than it leads to")
        here = here.after(record, run)
        way.append((signed, record, here))
    if before is not None:
        before.put(known, model, way)
    return Followed(tuple(record for _, record, _ in way), here.roster) if way else Flaw("there is no record")


def open_next(run: Run, here: HistoryEnd, signed: CertifiedRecord, tools: Primitives) -> StepRecord | Flaw:
    """The record, if a history that ends here goes on with it, whatever standing it names (SPEC B2)."""
    record = record_of(signed)
    if record is None:
        return Flaw("this is no record")
    flaw = here.disagreement(record) or flaw_of(run, signed, record, here.roster, tools)
    if flaw is None and not names_state(run, record):
        flaw = "it does not name the state after it as it has to"
    return record if flaw is None else Flaw(f"the record of step {record.step}: {flaw}")


def follow_changes(run: Run, changes: Iterable[CertifiedRecord], tools: Primitives) -> Roster | Flaw:
    """The roster after the records that changed it, all of them from the founders on (SPEC J8)."""
    roster = Roster.founding(run)
    for signed in changes:
        record = open_record(run, signed, roster, tools)
        if isinstance(record, Flaw):
            return record
        if not record.changes_roster:
            return Flaw("the history holds more than changes of the members")
        roster = roster.after(record)
    return roster


def names_state(run: Run, record: StepRecord) -> bool:
    """Tell whether a record names the state after it as it has to: by content, or chained (SPEC U5)."""
    every, returned = run.parameters.content_every, bool(record.returned or record.admitted)
    if record.content != (
        record.closing or names_content(every, record.step, updated=record.updated, returned=returned)
    ):
        return False
    before, aggregates = Digest(record.state_before), Digest(record.aggregates)
    return record.content or record.state_after == chained_state(before, aggregates, record.factor, record.updates)


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
