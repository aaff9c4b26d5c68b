"""Runs that many tests of evidence look at, made once."""

import dataclasses

import pytest

from tests.evidence.exhibited_bans import ATTACKS, QUICK
from tests.protocol.small_runs import finished
from troth.workshop.simulation import ProtocolSimulation


@pytest.fixture(scope="session")
def runs() -> dict[str, ProtocolSimulation]:
    """A finished run of every attack."""
    return {attack: finished(dataclasses.replace(QUICK, attack=attack)) for attack in ATTACKS}
