"""Peers with and without numba in one run: each computes in its own way, and none accuses another."""

import random

import pytest

from tests.protocol.small_runs import finished, kept_promises
from troth.clip import kernels
from troth.workshop.simulation import Scenario


def test_honest_peers_agree_whichever_way_each_number_was_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, ways = random.Random(7), []

    def either(count: int) -> bool:
        ways.append(count >= kernels.LARGE and draw.random() < 0.5)
        return ways[-1]

    monkeypatch.setattr(kernels, "compiled", either)
    scenario = Scenario(
        task=f"quadratic:dimension={kernels.LARGE + 9}", peers=4, byzantine=1, attack_start=1, steps=5, evaluate_every=5
    )
    simulation = finished(scenario, share=False)
    kept_promises(simulation)
    assert len(simulation.trace) >= 5
    assert sum(ways) > 20, "loops took part"
    assert not all(ways)
