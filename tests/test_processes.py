"""Processes that people do not see do not hear Ctrl-C, from their first moment on; import nothing from the folder
that they are started in; and are asked before they are ended."""

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from troth.audit import signatures
from troth.audit.report import Report
from troth.crypto import PeerId
from troth.processes import Died, asked_to_stop, interrupts_ignored, work_through
from troth.swarm.plan import SwarmPlan, rehearsal
from troth.swarm.run import Swarm


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
    monkeypatch.setattr(signatures, "_BATCH", 1)
    monkeypatch.setattr(signatures, "_WORTH_WHILE", 0)
    monkeypatch.setattr(ProcessPoolExecutor, "submit", _start_safely)
    with pytest.raises(_StartedError), signatures.SignatureChecker(Report("run")) as checker:
        checker.add(signatures.Claim("here", PeerId(bytes(32)), b"", bytes(64)))


def _until_asked(job: str) -> str:
    """Work until somebody wants it to end."""
    while not asked_to_stop():
        time.sleep(0.01)
    return f"{job} half-way"


def _endless(job: str) -> str:
    Path(job).touch()
    while True:
        time.sleep(0.01)


def _dies_when_asked(job: str) -> str:
    _until_asked(job)
    os._exit(3)


def test_jobs_under_way_are_asked_to_stop_and_say_how_far_they_came() -> None:
    asked: list[bool] = []
    until = time.monotonic() + 0.5
    done = work_through(_until_asked, "abc", 2, until, grace_s=60.0, on_stop=lambda: asked.append(True))
    assert sorted(done) == [("a", "a half-way"), ("b", "b half-way")]
    assert asked == [True]
    assert not multiprocessing.active_children()


def test_a_job_that_does_not_listen_is_ended_after_the_grace() -> None:
    assert list(work_through(_endless, [os.devnull], 1, time.monotonic() + 0.1, grace_s=0.5)) == []
    assert not multiprocessing.active_children()


def test_a_job_that_dies_when_it_is_asked_is_said_to_have_died() -> None:
    done = list(work_through(_dies_when_asked, ["a"], 1, time.monotonic() + 0.1, grace_s=60.0))
    assert done == [("a", Died(3))]


def test_a_closed_generator_asks_too(tmp_path: Path) -> None:
    """It waits for the last words, though nobody hears them."""
    asked: list[bool] = []
    jobs = [str(tmp_path / "first"), str(tmp_path / "second")]
    done = work_through(_touch_then_wait, jobs, 1, grace_s=60.0, on_stop=lambda: asked.append(True))
    assert next(done) == (jobs[0], "first")
    done.close()
    assert asked == [True]
    assert (tmp_path / "second").read_text() == "last words"
    assert not multiprocessing.active_children()


def _touch_then_wait(job: str) -> str:
    path = Path(job)
    if path.name == "second":
        _until_asked(job)
        path.write_text("last words")
    return path.name


def test_nobody_is_asked_where_there_is_no_parent() -> None:
    assert not asked_to_stop()
