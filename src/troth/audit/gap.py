"""A history whose beginning was deleted: members follow from the records that changed them, the rest from what is left.

A peer keeps the last 20 files of its journal, and every record that changed the members. Strikes, link disputes and the lengths
of earlier updates stand in deleted records, so for a while not every field of a record can be derived.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from troth.audit.retrace import Updates
from troth.crypto import Digest
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roles import NO_PENDING_AUDITS
from troth.protocol.core.roster import STRIKE_STEPS
from troth.protocol.core.run import Run
from troth.protocol.core.scales import APPLIED_STEPS, TAU_STEPS, Scales
from troth.protocol.core.state import State
from troth.protocol.history.follow import follow_changes
from troth.protocol.history.record import Flaw
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.primitives import Primitives

_OF_SCALES = frozenset({"tau", "factor", "state after"})
_OF_ROSTER = frozenset({"slowed", "link disputes", "expelled", "absent", "standing"})
_OF_DOOR = frozenset(
    {"candidates", "admitted"}
)  # for a probation: who was admitted lately, and what tickets were made for


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
