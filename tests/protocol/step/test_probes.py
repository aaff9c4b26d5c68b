"""Commitments of candidates in a step that takes several attempts (SPEC J5)."""

import msgspec

from tests.protocol.altered_runs import AlteredRun
from tests.protocol.small_runs import all_records
from troth.crypto import PeerId, Slot
from troth.protocol.wire.messages import Message, Report, Reveal
from troth.workshop.simulation import Scenario

OPEN = Scenario(
    task="quadratic:dimension=40", peers=6, byzantine=0, steps=12, evaluate_every=12, probation=8, strangers="honest"
)
STEP = 8  # in which somebody has the first attempt repeated; the candidate is on probation


def listed_once(slot: Slot, message: Message) -> Message:
    """List candidates in first attempts only."""
    if isinstance(message, Reveal) and slot.attempt and slot.step == STEP:
        return msgspec.structs.replace(message, probes=())
    return message


def is_report(slot: Slot, message: Message) -> bool:
    return isinstance(message, Report) and slot.step == STEP


def test_what_was_listed_counts_though_the_attempt_was_repeated() -> None:
    """[J5] A liar that heard of its friend's commitment alone lists it, sees which audits the coins draw, has the attempt
    repeated, and is silent about it from then on. It would be a miss, and the audit would be spared."""
    simulation = AlteredRun(OPEN)
    silent, *others = simulation.honest
    simulation.alter(others, listed_once).alter([silent], lambda slot, said: None if is_report(slot, said) else said)
    simulation.play()
    (record,) = [one for one in all_records(simulation) if one.step == STEP]
    assert record.absent == (silent,), "the attempt was repeated"
    (candidate,) = record.candidates
    assert [key for key, _ in record.probed] == [candidate.key]
    assert candidate.missed == 0
    assert simulation.agreement
    assert PeerId(candidate.key) in all_records(simulation)[-1].members
