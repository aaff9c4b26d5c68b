"""Starting processes that people do not see: Ctrl-C, which a terminal sends to all, is for the one that they started; and they
import nothing from the folder that it was started in, which may be a stranger's.

Also many jobs on several of them, and one piece of work shared by threads of this process. Imports nothing of ours, so that every
package may use it.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, NamedTuple, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")

_SAFE_PATH = "PYTHONSAFEPATH"
_SPAWN = get_context("spawn")  # a fork would copy PyTorch's locks, and hang


@contextmanager
def started_safely(*others: signal.Signals) -> Iterator[None]:
    """Python that is started here (`multiprocessing` does so by `python -c`) does not look for modules in the current folder: a
    `pickle.py` in a folder that came with a manifest would be run there, and nobody agreed. And see `interrupts_ignored`."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        with interrupts_ignored(*others):
            yield
    finally:
        del os.environ[_SAFE_PATH]
        os.environ.update({} if before is None else {_SAFE_PATH: before})


@contextmanager
def interrupts_ignored(*others: signal.Signals) -> Iterator[None]:
    """Processes started here ignore Ctrl-C, and other signals, from their first moment, imports included; the parent ends them.

    One that ignored it later, by itself, would print a traceback if it came before."""
    if threading.current_thread() is not threading.main_thread():  # no other may set handlers, or is interrupted
        yield
        return
    before: dict[int, Any] = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *others)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Died(NamedTuple):
    """Stands in for the result of a job whose process ended."""

    exit_code: int | None

    def __str__(self) -> str:
        return f"the process that played it ended with exit code {self.exit_code}"


def work_through(
    work: Callable[[Job], Result], jobs: Iterable[Job], processes: int, until: float | None = None
) -> Generator[tuple[Job, Result | Died]]:
    """Do jobs on several processes, each one job after the other; results as they come.

    Ends when all are there or at `until` by `time.monotonic`. Closing the generator stops earlier: at once, and without leaving a
    process behind. A process that dies is a result, not a hang. `work` is a function that a new process can import.
    """
    left = iter(jobs)
    workers: list[_Worker[Job, Result]] = []
    try:
        for job in islice(left, processes):
            workers.append(_Worker(work, job))
        while workers:
            seconds = None if until is None else until - time.monotonic()
            if seconds is not None and seconds <= 0:
                return
            ready = wait([worker.pipe for worker in workers], seconds)
            for worker in [worker for worker in workers if worker.pipe in ready]:
                done, job_next = (worker.job, worker.result()), next(left, _NONE)
                if job_next is _NONE:
                    worker.stop()
                    workers.remove(worker)
                else:
                    worker.begin(job_next)
                yield done
    finally:
        for worker in workers:
            worker.stop()


_NONE: Any = object()


class _Worker(Generic[Job, Result]):
    """A process, and the job that it does."""

    pipe: "Connection[Job, Result]"

    def __init__(self, work: Callable[[Job], Result], job: Job) -> None:
        self._work = work
        self._start()
        self.begin(job)

    def _start(self) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(self._work, theirs), daemon=True)
        with started_safely(signal.SIGTERM):  # sent to all of a service at once: the parent ends them
            self._process.start()
        theirs.close()

    def begin(self, job: Job) -> None:
        self.job = job
        with suppress(OSError):  # it has died: `result` will say so
            self.pipe.send(job)

    def result(self) -> Result | Died:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            died = Died(self._process.exitcode)
            self.stop()
            self._start()
            return died

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _serve(work: Callable[[Job], Result], pipe: "Connection[Result, Job]") -> None:
    """Serve until the parent has gone."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            pipe.send(work(pipe.recv()))


def _end_with_parent() -> None:
    """End this process as soon as its parent is gone, however that ended: somebody else may begin the same job again."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


def in_turns(work: Callable[[Job], Result], jobs: Sequence[Job], threads: int) -> list[Result]:
    """`[work(job) for job in jobs]` on threads of one pool, for work that leaves the interpreter's lock to others.

    Each takes the next job when it has time, the calling thread among them: on a busy machine it does most.
    """
    if threads <= 1:
        return [work(job) for job in jobs]
    results: dict[int, Result] = {}
    numbered = iter(enumerate(jobs))

    def take_turns() -> None:
        for number, job in numbered:  # one operation of the interpreter: none comes twice
            results[number] = work(job)

    helpers = [_threads(os.getpid()).submit(take_turns) for _ in range(threads - 1)]
    take_turns()
    for helper in helpers:
        if not helper.cancel():  # one that has not begun has nothing left to do
            helper.result()
    return [results[number] for number in range(len(jobs))]


@lru_cache(maxsize=1)
def _threads(_process: int) -> ThreadPoolExecutor:
    """One pool for the process: a fork has threads of its own."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="troth-turns")
