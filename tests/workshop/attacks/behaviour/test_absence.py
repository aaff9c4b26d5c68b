"""Liars who leave: as many as the run says it can bear."""

import dataclasses

import pytest

from tests.protocol.small_runs import SMALL, finished, kept_promises, records
from troth.workshop.simulation import Scenario


def test_who_leaves_is_absent_and_not_banned() -> None:
    """[N1] From the first announcement of the step on."""
    simulation = finished(dataclasses.replace(SMALL, attack="leave", steps=6))
    assert kept_promises(simulation) == {}
    assert sorted(simulation.absent) == simulation.byzantine
    assert {simulation.numbers[peer] for peer in records(simulation)[3].leaving} == set(simulation.byzantine)
    assert simulation.attempts == 6 + 1, "nobody waits for them twice, and the closing step is one too"


@pytest.mark.long
@pytest.mark.parametrize(("peers", "liars"), [(16, 7), (10, 4), (4, 1)])
def test_training_goes_on_without_them(peers: int, liars: int) -> None:
    """At most b of the members are faulty, so the model moves in every step."""
    scenario = Scenario(
        task="quadratic:dimension=60", peers=peers, byzantine=liars, attack="leave", attack_start=3, steps=12, seed=1
    )
    simulation = finished(scenario)
    kept_promises(simulation)
    assert all(record.updated for record in records(simulation))
