"""Runs that many tests look at, made once."""

import os
import tempfile

import pytest
from hypothesis import settings

from tests.browser.chromium import why_not
from tests.oracles import byzfl, byzfl_attacks
from tests.protocol.small_runs import APART, finished
from troth.workshop.simulation import ProtocolSimulation

__all__ = ["attacked", "byzfl", "byzfl_attacks"]

# What the person who runs the tests has agreed to run is neither read nor written here, nor by processes that tests start.
_CONFIG = tempfile.TemporaryDirectory(prefix="troth-tests-config-")
os.environ["XDG_CONFIG_HOME"] = _CONFIG.name

settings.register_profile("patient", deadline=None)  # a busy machine is no failure
settings.load_profile("patient")


@pytest.fixture(scope="session")
def attacked() -> ProtocolSimulation:
    """Seven peers, two of whom flip signs in every fifth step from step 3 on, run for 30 steps."""
    return finished(APART)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A page that nobody looked at is no page that works: say so."""
    if any("tests/browser" in report.nodeid for report in terminalreporter.stats.get("skipped", ())):
        terminalreporter.write_line(f"The browser tests were skipped: {why_not()}", yellow=True)
