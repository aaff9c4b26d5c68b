"""Run a sweep: everything that is not in its folder yet."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from troth.lab.sweeps.engines import Engine
from troth.lab.sweeps.perform import Performed
from troth.lab.sweeps.store import Store
from troth.lab.sweeps.sweep import Job, Plan, Sweep
from troth.lab.sweeps.unfinished import forget, halfway


@dataclass(frozen=True)
class Progress:
    """How far a sweep is, after each of its runs."""

    done: int  # in this call
    of: int
    kept: int  # from before
    failed: int
    halfway: int = 0  # of those that are left, kept half-way
    resumed: int = 0  # of those that are done, went on from there


def run_sweep(
    sweep: Sweep,
    plan: Plan,
    folder: Path,
    engine: Engine,
    *,
    at_once: int,
    only: Plan | None = None,
    until: float | None = None,
    extend: bool = False,
    on_run: Callable[[Progress, Job | None, Performed | None], None] = lambda *_: None,
) -> Store:
    """Make the runs that are missing, or those of them that are in `only`, and keep each as soon as it is there.

    Interrupted, by the time limit or by Ctrl-C, it loses the runs under way at most, and not even those if the engine keeps them;
    called again, it goes on.
    """
    store = Store(folder, sweep, plan.cells, extend=extend)
    wanted = (only or plan).jobs()
    jobs = [job for job in wanted if job.key in store.missing]
    left, done, failed, resumed = {job.key for job in jobs}, 0, 0, 0

    def tell(job: Job | None = None, performed: Performed | None = None) -> None:
        under_way = len(halfway(folder, left))
        on_run(Progress(done, len(jobs), len(wanted) - len(jobs), failed, under_way, resumed), job, performed)

    for key in halfway(folder, {job.key for job in wanted} - left):
        forget(folder, key)  # the result was kept, and then the machine was gone
    tell()
    try:
        with closing(engine(jobs, at_once, until)) as results:
            for job, performed in results:
                if not performed.stopped:
                    store.add(job.key, performed.found, performed.seconds)
                    done, failed = done + 1, failed + performed.failed
                    resumed += performed.resumed
                    left.discard(job.key)
                if not performed.stopped and (performed.resumed or not performed.failed):
                    forget(
                        folder, job.key
                    )  # a failure may be the checkpoint's: what failed once from there begins anew
                tell(job, performed)
    finally:
        store.close()
    return store
