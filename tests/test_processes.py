"""Processes that people do not see do not hear Ctrl-C, from their first moment on; import nothing from the folder
that they are started in; and end with those that started them."""

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from troth.audit import journal
from troth.audit.report import AuditReport
from troth.crypto import PeerId
from troth.processes import Died, interrupts_ignored, work_through
from troth.workshop.swarm import Swarm
from troth.workshop.swarm_peers import SwarmPlan, rehearsal


class _StartedError(Exception):
    """Raised in place of starting a process."""


def _start(*_: Any) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    raise _StartedError


def _start_safely(*_: Any) -> None:
    assert os.environ["PYTHONSAFEPATH"] == "1", "it would import what lies in the current folder"
    _start()


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


def test_nothing_in_the_folder_that_it_is_started_in_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have come with a manifest: `multiprocessing` starts `python -c`, which looks for modules there first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    for name in ("pickle", "signal", "socket"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nraise SystemExit")
    assert list(work_through(abs, [-1], 1)) == [(-1, 1)]
    assert not (tmp_path / "ran").exists()
    assert "PYTHONSAFEPATH" not in os.environ, "what else a person starts is their own"


def test_the_fork_server_of_a_swarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It imports for seconds before it takes care of signals itself."""
    monkeypatch.setattr("multiprocessing.forkserver.ensure_running", _start_safely)
    plan = SwarmPlan(peers=4)
    with pytest.raises(_StartedError), Swarm(plan, rehearsal(plan, "quadratic:dimension=40"), tmp_path):
        pass


def test_the_process_that_verifies_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_BATCH", 1)
    monkeypatch.setattr(journal, "_WORTH_WHILE", 0)
    monkeypatch.setattr(ProcessPoolExecutor, "submit", _start_safely)
    with pytest.raises(_StartedError), journal.SignatureChecker(AuditReport("run")) as checker:
        checker.add(journal.Claim("here", PeerId(bytes(32)), b"", bytes(64)))


def _endless(job: str) -> str:
    Path(job).touch()
    while True:
        time.sleep(0.01)


def _dies(job: str) -> str:
    if job == "a":
        os._exit(3)
    return job


@pytest.mark.long
def test_a_process_that_dies_is_a_result_and_the_next_job_is_done() -> None:
    assert list(work_through(_dies, ["a", "b"], 1)) == [("a", Died(3)), ("b", "b")]


def test_jobs_under_way_are_ended_when_the_time_is_up() -> None:
    assert list(work_through(_endless, [os.devnull], 1, time.monotonic() + 0.1)) == []
    assert not multiprocessing.active_children()


@pytest.mark.long
def test_a_closed_generator_leaves_no_process_behind(tmp_path: Path) -> None:
    done = work_through(_touch_then_wait, [str(tmp_path / name) for name in ("first", "second")], 1)
    assert next(done)[1] == "first"
    done.close()
    assert not multiprocessing.active_children()


def _touch_then_wait(job: str) -> str:
    return Path(job).name if job.endswith("first") else _endless(job)
