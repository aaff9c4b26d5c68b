"""Processes that people do not see do not hear Ctrl-C, from their first moment on."""

import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from troth.audit import signatures
from troth.audit.report import Report
from troth.crypto import PeerId
from troth.processes import interrupts_ignored
from troth.swarm.plan import SwarmPlan, rehearsal
from troth.swarm.run import Swarm


class _StartedError(Exception):
    """Raised in place of starting a process."""


def _start(*_: Any) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    raise _StartedError


def test_this_process_hears_it_again_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(_StartedError), interrupts_ignored():
        _start()
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_may_start_processes_too() -> None:
    """Python lets the main thread alone set handlers."""
    ended = []

    def start() -> None:
        with interrupts_ignored():
            ended.append(True)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert ended


def test_the_fork_server_of_a_swarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It imports for seconds before it takes care of signals itself."""
    monkeypatch.setattr("multiprocessing.forkserver.ensure_running", _start)
    plan = SwarmPlan(peers=4)
    with pytest.raises(_StartedError), Swarm(plan, rehearsal(plan, "quadratic:dimension=40"), tmp_path):
        pass


def test_the_process_that_verifies_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "_BATCH", 1)
    monkeypatch.setattr(signatures, "_WORTH_WHILE", 0)
    monkeypatch.setattr(ProcessPoolExecutor, "submit", _start)
    with pytest.raises(_StartedError), signatures.SignatureChecker(Report("run")) as checker:
        checker.add(signatures.Claim("here", PeerId(bytes(32)), b"", bytes(64)))
