"""Workers: several processes, each of which plays one world after the other.

Stopping takes effect at once and leaves no process behind. A process that dies is a broken world, not a hang.
"""

import time
from collections.abc import Generator, Iterable
from contextlib import suppress
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait

from troth.processes import interrupts_ignored
from troth.simulation.chaos.judge import Verdict, judge
from troth.simulation.chaos.plan import Plan

_SPAWN = get_context("spawn")  # a fork would copy PyTorch's locks, and hang


def verdict_on(plan: Plan) -> Verdict:
    """Judge a plan; a checker that raises is a broken world too."""
    try:
        return judge(plan)
    except Exception as error:
        return Verdict(plan.seed, str(plan), [f"crash: {type(error).__name__}: {error}"])


def judge_all(plans: Iterable[Plan], processes: int, until: float | None = None) -> Generator[Verdict]:
    """Verdicts as they come, until all are there or `until` by `time.monotonic`. Close the generator to stop earlier."""
    left = iter(plans)
    workers: list[_Worker] = []
    try:
        for plan in islice(left, processes):
            workers.append(_Worker(plan))
        while workers:
            seconds = None if until is None else until - time.monotonic()
            if seconds is not None and seconds <= 0:
                return
            ready = wait([worker.pipe for worker in workers], seconds)
            for worker in [worker for worker in workers if worker.pipe in ready]:
                verdict, plan_next = worker.verdict(), next(left, None)
                if plan_next is None:
                    worker.stop()
                    workers.remove(worker)
                else:
                    worker.play(plan_next)
                yield verdict
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process, and the plan that it plays."""

    pipe: "Connection[Plan, Verdict]"

    def __init__(self, plan: Plan) -> None:
        self._start()
        self.play(plan)

    def _start(self) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_work, args=(theirs,), daemon=True)
        with interrupts_ignored():
            self._process.start()
        theirs.close()

    def play(self, plan: Plan) -> None:
        self._plan = plan
        with suppress(OSError):  # it has died: `verdict` will say so
            self.pipe.send(plan)

    def verdict(self) -> Verdict:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            why = f"crash: the process that played it ended with exit code {self._process.exitcode}"
            self.stop()
            self._start()
            return Verdict(self._plan.seed, str(self._plan), [why])

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _work(pipe: "Connection[Verdict, Plan]") -> None:
    """Serve until the parent is gone."""
    try:
        while True:
            pipe.send(verdict_on(pipe.recv()))
    except (EOFError, OSError):
        return
