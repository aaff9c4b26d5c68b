"""Many peers in one process share nothing that could decide anything."""

from typing import Any

from tests.protocol.small_runs import SMALL, finished
from troth.protocol.wire.primitives import Primitives
from troth.simulation import ProtocolSimulation


def test_with_the_memo_off_the_trace_is_the_same(attacked: ProtocolSimulation) -> None:
    """[S1] Every record, byte for byte, and the same evidence."""
    alone = finished(SMALL, share=False)
    assert type(alone.tools) is Primitives
    assert alone.trace == attacked.trace
    assert [e.text for e in alone.evidence] == [e.text for e in attacked.evidence]


def test_gradients_computed_one_by_one_give_the_same_trace(attacked: ProtocolSimulation) -> None:
    """[S1, R2] The batched call is no more than that: each row follows from its own seed."""
    alone = ProtocolSimulation(SMALL)
    alone.problem.why_one_by_one = "for this test"
    for _ in alone.steps():
        pass
    assert alone.trace == attacked.trace


def test_audits_and_votes_recompute_in_calls_of_their_own(monkeypatch: Any) -> None:
    """[S1, T3] One recomputation per audit, and one per member and trial; none of them asks the pool."""
    from troth.training.work import TrainingWork

    calls = 0
    plain = TrainingWork.gradient_now

    def counted(self: TrainingWork, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return plain(self, *arguments)

    monkeypatch.setattr(TrainingWork, "gradient_now", counted)
    simulation = ProtocolSimulation(SMALL)
    members_at_trials = 0
    alive = SMALL.peers
    for report in simulation.steps():
        members_at_trials += alive if report.bans else 0
        alive = report.alive
    assert simulation.trials == len(simulation.bans)
    assert calls == simulation.audits + members_at_trials


def test_equal_scenarios_give_equal_traces(attacked: ProtocolSimulation) -> None:
    """[S1]"""
    assert finished(SMALL).trace == attacked.trace
