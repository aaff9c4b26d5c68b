"""Gradients begun ahead and digests from the device change no record; skipped where there is no GPU.

Run on a machine with a GPU: `python -m pytest -q -p no:cacheprovider tests/workshop/simulation/test_cuda.py`.
"""

from dataclasses import replace

import pytest
import torch

from troth.options import CodeName
from troth.protocol.core.records import decode_record
from troth.training.work import TrainingWork, state_digest
from troth.workshop.simulation import ProtocolSimulation, Scenario

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

ATTACKED = Scenario(peers=7, byzantine=2, attack_start=2, steps=8, evaluate_every=8, device="cuda")


def finished(scenario: Scenario, *, share: bool = True) -> ProtocolSimulation:
    simulation = ProtocolSimulation(scenario, share=share)
    for _ in simulation.steps():
        pass
    return simulation


@pytest.mark.parametrize("code", ["float32", "int8"])
def test_nothing_that_is_shared_or_begun_ahead_shows_in_the_records(code: CodeName) -> None:
    """[S1] Liars are banned on the way, so parts are cut in other places than foreseen."""
    scenario = replace(ATTACKED, code=code)
    together, alone = finished(scenario), finished(scenario, share=False)
    assert together._ahead is not None
    assert alone._ahead is None
    assert together.bans
    assert together.trace == alone.trace
    assert [e.text for e in together.evidence] == [e.text for e in alone.evidence]


def test_every_audit_is_a_computation_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """[S1, D1] An audit takes a gradient that the auditor itself began, or computes one."""
    simulation = ProtocolSimulation(ATTACKED)
    ahead, plain, computed = simulation._ahead, TrainingWork.gradient_now, 0
    assert ahead is not None
    begin, begun = ahead.begin, []

    def noted(*arguments: object) -> object:
        begun.append(begin(*arguments))  # type: ignore[arg-type]
        return begun[-1]

    def counted(self: TrainingWork, *arguments: object) -> torch.Tensor:
        nonlocal computed
        computed += 1
        return plain(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ahead, "begin", noted)
    monkeypatch.setattr(TrainingWork, "gradient_now", counted)
    for _ in simulation.steps():
        pass
    assert computed + len(begun) >= simulation.audits + simulation.steps_done
    assert len({id(one.row_D) for one in begun}) == len(begun)


def test_a_states_digest_from_the_device_is_the_hosts() -> None:
    simulation = finished(Scenario(peers=4, steps=3, evaluate_every=3, device="cuda"))
    assert simulation._ahead is not None
    training = next(iter(simulation.states.values())).training
    simulation._ahead.begin_digest(training)
    assert simulation._ahead.digest(training) == state_digest(training)


def test_strangers_change_nothing_of_that() -> None:
    """[S1, J5] Candidates' gradients are cut as contributors' are, though they are no part of the aggregate."""
    scenario = replace(ATTACKED, probation=4, strangers="honest + noise + turns", steps=14, evaluate_every=14)
    together, alone = finished(scenario), finished(scenario, share=False)
    assert together.trace == alone.trace
    assert {ban.peer for ban in together.bans} <= together.liars
    assert any(decode_record(raw).admitted for raw in together.trace)
