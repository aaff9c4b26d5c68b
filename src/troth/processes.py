"""Starting processes that people do not see: Ctrl-C, which a terminal sends to all, is for the one that they started.

Also many jobs on several of them. Imports nothing of ours, so that every package may use it.
"""

import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, NamedTuple, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")

_SPAWN = get_context("spawn")  # a fork would copy PyTorch's locks, and hang


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Processes started here ignore Ctrl-C from their first moment, imports included; the parent ends them.

    One that ignored it later, by itself, would print a traceback if it came before."""
    if threading.current_thread() is not threading.main_thread():  # no other may set handlers, or is interrupted
        yield
        return
    before: Any = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
        with interrupts_ignored():
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
    """Serve until the parent is gone."""
    try:
        while True:
            pipe.send(work(pipe.recv()))
    except (EOFError, OSError):
        return
