"""Runs that many tests look at, made once."""

import dataclasses

import pytest
from hypothesis import settings

from tests.oracles import byzfl, byzfl_attacks
from tests.protocol.small_runs import SMALL, finished
from troth.simulation import ProtocolSimulation

__all__ = ["attacked", "byzfl", "byzfl_attacks"]

settings.register_profile("patient", deadline=None)  # a busy machine is no failure
settings.load_profile("patient")


@pytest.fixture(scope="session")
def attacked() -> ProtocolSimulation:
    """Seven peers, two of whom flip signs in every fifth step from step 3 on, run for 30 steps.

    One of them is found in step 4, while the other validates; that one is found in step 14, by a validator too."""
    return finished(dataclasses.replace(SMALL, attack_every=5, seed=5))
