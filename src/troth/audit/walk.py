"""The run from its founders on: every certified record follows from the one before it, and from what was announced (SPEC E5)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from troth.audit.journal import Claim, Place, SignatureChecker
from troth.audit.report import AuditReport, Check
from troth.audit.retrace import (
    PaperTools,
    RetraceError,
    Retracer,
    UnseenError,
    Updates,
    differences,
    open_said,
    restarted,
)
from troth.crypto import Digest, PeerId, blob_digest, signed_bytes
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roles import NO_PENDING_AUDITS
from troth.protocol.core.roster import APPLIED_STEPS, STRIKE_STEPS, TAU_STEPS, Scales
from troth.protocol.core.run import Run
from troth.protocol.core.state import NO_MODEL, State
from troth.protocol.history import (
    Entry,
    Flaw,
    HistoryEnd,
    Recorded,
    Said,
    Signed,
    follow_changes,
    open_next,
    record_of,
    state_after,
    step_of,
)
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import Announced, Commit, said_as
from troth.protocol.wire.primitives import Primitives

# A history whose beginning was deleted: members follow from the records that changed them, the rest from what is left.
#
# A peer keeps the last 20 files of its journal, and every record that changed the members. Strikes, link disputes and the
# lengths of earlier updates stand in deleted records, so for a while not every field of a record can be derived.


_OF_SCALES = frozenset({"tau", "factor", "state after"})
_OF_ROSTER = frozenset({"slowed", "link disputes", "expelled", "absent", "standing"})
_OF_DOOR = frozenset({"candidates", "admitted"})  # for a probation: who was admitted, and what tickets were made for


@dataclass(frozen=True)
class Gap:
    """The first step that is left of a history."""

    step: int

    def forgiven(self, state: State[Updates]) -> frozenset[str]:
        """Fields of this state's record that depend on deleted records."""
        found: frozenset[str] = frozenset()
        if not self._knows_scales(state):
            found |= _OF_SCALES
        if state.step <= self.step + 2 * state.roster.door.probation:
            found |= _OF_DOOR
        return found | _OF_ROSTER if state.step <= self.step + STRIKE_STEPS else found

    def _knows_scales(self, state: State[Updates]) -> bool:
        return len(state.scales.applied) == APPLIED_STEPS and len(state.scales.medians) == TAU_STEPS

    def filled(self, state: State[Updates], record: StepRecord) -> State[Updates]:
        """The state with what it lacks taken from the record of its step, which a quorum signed."""
        if state.step <= self.step + 1:
            state = replace(state, earlier_randomness=Digest(record.seed_randomness))
        if self._knows_scales(state):
            return state
        return replace(state, scales=replace(state.scales, tau=record.tau))


def begin_after(
    run: Run, record: StepRecord, changes: Sequence[CertifiedRecord], tools: Primitives
) -> State[Updates] | Flaw:
    """The state before the first record that is left, if the changes before it follow from the founders."""
    roster = follow_changes(run, changes, tools)
    if isinstance(roster, Flaw):
        return roster
    updates = record.updates - record.updated
    unknown = Digest(bytes(32))  # the draw before it stands in a deleted record
    return State(
        step=record.step,
        roster=replace(roster, updates=updates),
        training=updates,
        model=Digest(record.state_before),
        randomness=unknown,
        earlier_randomness=Digest(record.seed_randomness),
        scales=Scales(record.tau, updates=updates),
        pending_audits=NO_PENDING_AUDITS,
        audit_records={},
        incarnation=record.incarnation,
    )


def measurable(state: State[Updates]) -> State[Updates]:
    """The state for a step to be made again: without any earlier update its limit could not be computed (SPEC U3)."""
    if state.scales.applied or not state.scales.updates:
        return state
    return replace(state, scales=replace(state.scales, applied=(0.0,)))


_STATES = 256  # that are kept, to compare checkpoints with: of a large model there are three in 48 steps
_WITH_MESSAGES = 8  # of these, with the messages of their last steps
_UNRECORDED = 64  # steps whose announcements wait for a record; a peer may have to try a step a few times


@dataclass
class Walked:
    """The run as far as it was followed."""

    state: State[Updates] | None = None  # after the last record
    records: dict[int, StepRecord] = field(default_factory=dict)  # by step
    raw: dict[int, bytes] = field(default_factory=dict)  # the same, as signed
    states: dict[int, State[Updates]] = field(default_factory=dict)  # the last ones, by the step that they begin
    retraced: set[int] = field(default_factory=set)  # steps whose record follows from their announcements
    classes: dict[tuple[int, PeerId], bytes] = field(
        default_factory=dict
    )  # of hardware, as Commits named them, by step
    gap: Gap | None = None  # the beginning was deleted
    broken: bool = False  # a record did not follow, so nothing after it was followed

    def keep(self, state: State[Updates]) -> None:
        """Keep a state to compare files with; older ones without messages, and the oldest not at all."""
        self.states[state.step] = state
        kept = state.audit_records.get(state.step - 1)
        for peer, said in {} if kept is None else kept.commits.items():
            if (named := said_as(said, Commit).hardware) is not None:
                self.classes[state.step - 1, peer] = named
        self.states.pop(state.step - _STATES, None)
        old = self.states.get(state.step - _WITH_MESSAGES)
        if old is not None:
            self.states[old.step] = replace(old, audit_records={})

    @property
    def first(self) -> int:
        """Step of the first record."""
        return min(self.records, default=0)

    @property
    def last(self) -> StepRecord | None:
        return self.records[max(self.records)] if self.records else None

    def bans(self) -> list[tuple[int, PeerId]]:
        """Steps and keys of all bans."""
        return [(step, peer) for step, record in sorted(self.records.items()) for peer in record.banned]


class Walk:
    """Takes a journal's entries one by one."""

    def __init__(
        self,
        run: Run,
        ends: int,  # updates after which the run closes
        changes: Sequence[CertifiedRecord],  # that changed the roster, for a journal without a beginning
        report: AuditReport,
        signatures: SignatureChecker,
        *,
        whole: bool,
    ) -> None:
        self._run = run
        self._ends = ends
        self._changes = changes
        self._report = report
        self._signatures = signatures
        self._tools = PaperTools()
        self._retracer = Retracer(run, self._tools)
        self._unseen = UnseenSteps(report)
        self._said: dict[tuple[int, int], dict[tuple[int, int], dict[PeerId, Announced]]] = {}
        self._pending: tuple[Place, Recorded] | None = None  # a record whose signatures come next
        self.walked = Walked(State.first(run, 0, NO_MODEL) if whole else None)

    def take(self, place: Place, entry: Entry) -> None:
        match entry:
            case Said():
                self._hear(place, entry)
            case Recorded():
                self._drop_unsigned()
                self._pending = place, entry
            case Signed():
                self._certify(place, entry)

    def end(self) -> Walked:
        self._drop_unsigned()
        self._unseen.tell()
        self._report.passed(Check.SIGNATURES, self._tools.verified)
        return self.walked

    # Announcements

    def _hear(self, at: Place, entry: Said) -> None:
        slot, where = entry.slot(self._run.id), str(at)
        for peer, envelope in entry.envelopes.items():
            signed = signed_bytes(slot, peer, blob_digest(envelope.payload))
            self._signatures.add(Claim(where, peer, signed, envelope.signature))
        said, malformed = open_said(slot, entry.envelopes, self._tools)
        for peer in sorted(malformed):
            self._report.wrong(Check.SIGNATURES, where, f"the message of {peer.hex()} is malformed, so nobody heard it")
        here = self._said.setdefault((slot.incarnation, slot.step), {})
        place = slot.attempt, int(slot.phase)
        if place not in here and here and place < max(here):
            self._report.wrong(Check.LINES, where, f"this announcement of step {slot.step} stands behind a later one")
        here[place] = dict(said)  # a peer that observes a step again hears all of it: the last word counts
        while len(self._said) > _UNRECORDED:
            del self._said[min(self._said, key=lambda key: key[1])]

    # Records

    def _drop_unsigned(self) -> None:
        if self._pending is not None:
            self._report.skipped(f"the record in {self._pending[0]}", "no signatures follow it, as after a power cut")
            self._pending = None

    def _certify(self, at: Place, entry: Signed) -> None:
        place, pending = self._pending or (at, None)
        self._pending = None
        if (signed := entry.under(pending)) is None:
            self._report.wrong(Check.RECORDS, str(at), "these signatures do not stand under their record")
            return
        if self.walked.broken:
            return
        record = record_of(signed)
        if record is None:
            self._break(place, "this is no record")
            return
        if signed.record == self.walked.raw.get(record.step) and record.step == self._step - 1:
            return  # written again after a power cut
        state = self._state_before(place, record)
        if state is not None:
            self._follow(place, state, record, signed)

    @property
    def _step(self) -> int:
        return -1 if self.walked.state is None else self.walked.state.step

    def _break(self, place: Place, what: str) -> None:
        self._report.wrong(Check.RECORDS, str(place), what)
        self._report.skipped(f"records after {place}", "they cannot be followed from one that is wrong")
        self.walked.broken = True

    def _state_before(self, place: Place, record: StepRecord) -> State[Updates] | None:
        """The state that the record has to continue."""
        walked = self.walked
        if walked.state is None:
            return self._begin_after_gap(place, record)
        last = walked.last
        if last is not None and record.step == last.step and record.incarnation > last.incarnation:
            again = f"step {record.step} was made again in incarnation {record.incarnation}"
            self._report.remark(f"{again}: that one counts")
            why = "a quorum had signed a record of that step before, and the journal holds no restart certificate"
            self._report.skipped(f"the restart before step {record.step}, incarnation {record.incarnation}", why)
            del walked.records[last.step], walked.raw[last.step]
            walked.retraced.discard(last.step)
            return walked.states[record.step]
        return walked.state

    def _begin_after_gap(self, place: Place, record: StepRecord) -> State[Updates] | None:
        before = [one for one in self._changes if step_of(one) < record.step]
        state = begin_after(self._run, record, before, self._tools)
        if isinstance(state, Flaw):
            self._break(place, f"the changes of members before it do not lead here: {state.reason}")
            return None
        self.walked.gap = Gap(record.step)
        self._report.skipped(
            f"steps 0 to {record.step}",
            "a peer deletes its oldest files; members follow from roster-changes.jsonl, and a quorum of them signed the rest",
        )
        return state

    def _follow(self, place: Place, state: State[Updates], record: StepRecord, signed: CertifiedRecord) -> None:
        walked, gap = self.walked, self.walked.gap
        state = state if gap is None else gap.filled(state, record)
        if state.step == 0 and state.model == NO_MODEL:
            state = replace(state, model=Digest(record.state_before))  # the sample makes the first model
        here = HistoryEnd.of(state, state.model)
        if isinstance(flaw := open_next(self._run, here, signed, self._tools), Flaw):
            self._break(place, flaw.reason)
            return
        if record.closing != (state.scales.updates >= self._ends):
            self._break(place, f"the record of step {record.step}: the run closes after {self._ends} updates")
            return
        walked.states[state.step] = state
        walked.state = self._after(place, restarted(state, record), record)
        walked.records[record.step], walked.raw[record.step] = record, signed.record
        walked.keep(walked.state)
        self._report.passed(Check.RECORDS)

    # Steps

    def _after(self, place: Place, state: State[Updates], record: StepRecord) -> State[Updates]:
        """The state after a certified record; the step is made again if all of it is there."""
        said = self._said.get((record.incarnation, record.step), {})
        self._said = {key: kept for key, kept in self._said.items() if key[1] > record.step}
        forgiven = self.walked.gap.forgiven(state) if self.walked.gap is not None else frozenset()
        try:
            if not said:
                raise UnseenError
            made = self._retracer.outcome(measurable(state), record, said)
        except UnseenError as error:
            self._unseen.add(record.step, str(error))
            if self.walked.gap is None and record.standing != state.common.standing_after(record, self._run):
                what = "it names another standing than it leads to"
                self._report.wrong(Check.RECORDS, str(place), f"the record of step {record.step}: {what}")
        except RetraceError as error:
            self._report.wrong(Check.STEPS, f"step {record.step} ({place})", str(error))
        else:
            differ = [name for name in differences(made.record, record) if name not in forgiven]
            if not differ:
                self._report.passed(Check.STEPS)
                self._report.retraced += 1
                self.walked.retraced.add(record.step)
                if self.walked.gap is None:
                    return made.state
                return replace(self._state_after(state, record), audit_records=made.state.audit_records)
            what = "the record does not follow from the announcements in this journal, in: " + ", ".join(differ)
            self._report.wrong(Check.STEPS, f"step {record.step} ({place})", what)
        return self._state_after(state, record)

    def _state_after(self, state: State[Updates], record: StepRecord) -> State[Updates]:
        updates, model = state.training + record.updated, Digest(record.state_after)
        return state_after(self._run, state, (record,), updates, model, self._tools)


# Steps that a peer did not see through: said in ranges, since a peer may be away for long.


_AWAY = "the journal holds no announcements there: this peer was away, or they were left out"


class UnseenSteps:
    """Steps whose record rests on its signatures alone."""

    def __init__(self, report: AuditReport) -> None:
        self._report = report
        self._first: int | None = None
        self._last = -1
        self._why = ""

    def add(self, step: int, why: str | None = None) -> None:
        """Note a step, and why it was not retraced: by default, since nothing of it is there."""
        reason = why or _AWAY
        if self._first is None or step != self._last + 1 or reason != self._why:
            self.tell()
            self._first, self._why = step, reason
        self._last = step

    def tell(self) -> None:
        if self._first is not None:
            steps = f"step {self._first}" if self._first == self._last else f"steps {self._first} to {self._last}"
            self._report.skipped(f"draws and verdicts of {steps}", f"{self._why}; members' signatures are right")
        self._first = None
