"""Run a sweep: everything that is not in its folder yet."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from troth.lab.sweeps.engines import Engine
from troth.lab.sweeps.perform import Performed
from troth.lab.sweeps.store import Store
from troth.lab.sweeps.sweep import Job, Plan, Sweep


@dataclass(frozen=True)
class Progress:
    """How far a sweep is, after each of its runs."""

    done: int  # in this call
    of: int
    kept: int  # from before
    failed: int


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

    Interrupted, by the time limit or by Ctrl-C, it loses the runs under way and nothing else; called again, it goes on.
    """
    store = Store(folder, sweep, plan.cells, extend=extend)
    wanted = (only or plan).jobs()
    jobs = [job for job in wanted if job.key in store.missing]
    kept, failed = len(wanted) - len(jobs), 0
    on_run(Progress(0, len(jobs), kept, 0), None, None)
    try:
        with closing(engine(jobs, at_once, until)) as results:
            for done, (job, performed) in enumerate(results, start=1):
                store.add(job.key, performed.found, performed.seconds)
                failed += performed.failed
                on_run(Progress(done, len(jobs), kept, failed), job, performed)
    finally:
        store.close()
    return store
