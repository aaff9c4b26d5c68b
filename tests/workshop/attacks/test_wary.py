"""`wary`: liars that see one of them being found, and behave; it does not save them."""

import pytest

from troth.crypto import PeerId
from troth.protocol.core.records import decode_record
from troth.protocol.step.trials import Trials
from troth.workshop.simulation import ProtocolSimulation, Scenario

LIARS, START = 5, 3


def played(attack: str, steps: int = 30) -> tuple[ProtocolSimulation, list[tuple[int, bool]]]:
    """A run until all liars are banned, and whether any of them lied, step by step."""
    simulation = ProtocolSimulation(
        Scenario(
            task="quadratic:dimension=16",
            peers=12,
            byzantine=LIARS,
            attack=attack,
            attack_start=START,
            steps=steps,
            evaluate_every=steps,
            seed=2,
        )
    )
    lied: list[tuple[int, bool]] = []
    forge = simulation.coalition.gradients

    def seen(step, own_BD, honest_HD, *others):  # type: ignore[no-untyped-def]
        sent_BD = forge(step, own_BD, honest_HD, *others)
        lied.append((step, bool((sent_BD != own_BD).any())))
        return sent_BD

    simulation.coalition.gradients = seen  # type: ignore[method-assign]
    for _ in simulation.steps():
        if len(simulation.bans) == LIARS:
            break
    return simulation, lied


@pytest.mark.long
def test_they_behave_when_one_is_found_and_all_fall_for_what_they_did_before() -> None:
    """[R8]"""
    simulation, lied = played("wary")
    first, *_ = steps = [ban.step for ban in simulation.bans]
    assert {ban.peer for ban in simulation.bans} == set(simulation.byzantine)
    assert dict(lied)[first] is False
    assert dict(lied)[first - 1] is True
    beside = {simulation.numbers[PeerId(peer)] for peer in contributors(simulation, first - 1)} & set(
        simulation.byzantine
    )
    assert len(beside) >= LIARS - 1  # one may have been a validator then: it falls for a later lie
    assert {ban.peer for ban in simulation.bans if ban.step <= first + 1} == beside
    assert steps[-1] <= first + 2


def contributors(simulation: ProtocolSimulation, step: int) -> tuple[bytes, ...]:
    return decode_record(simulation.trace[step]).contributors


@pytest.mark.long
def test_without_the_audit_of_that_step_they_would_be_found_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trials, "_beside_liars", lambda *_: set())
    simulation, _ = played("wary", steps=14)
    in_turn = [ban.step for ban in simulation.bans if ban.step < 14]  # the closing step audits everyone
    assert len(set(in_turn)) == len(in_turn) < LIARS


def test_those_who_do_not_see_it_are_found_by_the_audit_of_the_last_step_too() -> None:
    """[R6]"""
    simulation, lied = played("sign-flip")
    first, *later = (ban.step for ban in simulation.bans)
    assert dict(lied)[first] is True
    assert later == [first + 1] * (LIARS - 1)
