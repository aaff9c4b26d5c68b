"""Small runs of the real protocol, shared by the tests of its clauses."""

import pytest

from troth.simulation import ProtocolSimulation, Scenario

SMALL = Scenario(
    task="quadratic:dimension=60", peers=7, byzantine=2, attack_start=3, steps=30, evaluate_every=30, seed=1
)


def finished(scenario: Scenario, *, share: bool = True) -> ProtocolSimulation:
    simulation = ProtocolSimulation(scenario, share=share)
    for _ in simulation.steps():
        pass
    return simulation


@pytest.fixture(scope="session")
def attacked() -> ProtocolSimulation:
    """Seven peers, two of whom flip signs from step 3 on, run for 30 steps."""
    return finished(SMALL)
