"""Audits that came to nothing are told: no viewer may call that work clean."""

from itertools import islice

import pytest

from troth.crypto import PeerId
from troth.events.kinds import Stepped
from troth.protocol.core.records import decode_record
from troth.workshop.simulation import ProtocolSimulation, Scenario

LOST = Scenario(
    task="quadratic",
    peers=12,
    byzantine=2,
    validators=3,
    drop_outs=4,
    attack_start=2,
    attack_probability=0.3,
    steps=40,
    seed=2,
)


def played() -> tuple[ProtocolSimulation, list[Stepped]]:
    """As many steps as it takes until a liar is convicted late, by an audit that was dealt again."""
    simulation = ProtocolSimulation(LOST)
    return simulation, [event for report in islice(simulation.steps(), 8) for event in report.events]


def test_work_that_a_second_audit_convicts_was_told_as_unaudited_before() -> None:
    """A liar whose first auditor was lost: the first audit found nothing, since there was none."""
    _, events = played()
    convicted = {(trial.target, trial.step): event.step for event in events for trial in event.trials if trial.banned}
    late = {work for work, step in convicted.items() if step > work[1] + 1}
    assert late
    assert late <= {(work.peer, work.step) for event in events for work in event.unaudited}


@pytest.mark.long
def test_what_the_record_owes_is_told() -> None:
    simulation, told_events = played()
    events = {event.step: event for event in told_events}
    name = {peer: f"peer{number}" for peer, number in simulation.numbers.items()}
    records = [decode_record(raw) for raw in simulation.trace]
    for record in records:
        told = {(work.peer, work.step) for work in events[record.step].unaudited}
        assert told >= {(name[PeerId(audit.target)], audit.step) for audit in record.owed}
    assert any(record.owed for record in records)
