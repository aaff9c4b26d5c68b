"""Run a sweep: everything that is not in its folder yet."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
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

    Interrupted, by the time limit or by Ctrl-C, it loses the runs under way; called again, it makes them and the rest.
    """
    store = Store(folder, sweep, plan.cells, extend=extend)
    wanted = (only or plan).jobs()
    jobs = [job for job in wanted if job.key in store.missing]
    progress = Progress(0, len(jobs), len(wanted) - len(jobs), 0)
    on_run(progress, None, None)
    try:
        with closing(engine(jobs, at_once, until)) as results:
            for job, performed in results:
                store.add(job.key, performed.found, performed.seconds)
                progress = replace(progress, done=progress.done + 1, failed=progress.failed + performed.failed)
                on_run(progress, job, performed)
    finally:
        store.close()
    return store
