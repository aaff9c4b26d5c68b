"""Engines: where the runs of a sweep are made. All give the same results, in an order of their own."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any

from troth.errors import OperatorError
from troth.extras import how_to_install
from troth.lab.sweeps.perform import Performed, failure, perform
from troth.lab.sweeps.sweep import Job
from troth.processes import Died, work_through

Results = Generator[tuple[Job, Performed]]
Engine = Callable[[Sequence[Job], int, float | None], Results]  # jobs, how many at a time, when to stop (monotonic)


class EngineError(OperatorError):
    """An engine that is not here."""


def local(jobs: Sequence[Job], at_once: int, until: float | None) -> Results:
    """On processes of this machine."""
    with closing(work_through(perform, jobs, at_once, until)) as done:
        for job, performed in done:
            yield job, Performed(failure(str(performed)), 0.0) if isinstance(performed, Died) else performed


def ray(jobs: Sequence[Job], at_once: int, until: float | None, address: str | None = None) -> Results:
    """On a Ray cluster: one that runs at `address`, or one made here for this sweep alone.

    Its machines need Troth, and the sweep's folder and data at the same places.
    """
    cluster = _started(at_once, address)
    remote = cluster.remote(num_cpus=1, max_retries=2)(perform)
    waiting, left = {}, iter(jobs)
    try:
        for job in left:
            waiting[remote.remote(job)] = job
            if len(waiting) < at_once:
                continue
            yield from _ready(cluster, waiting, until)
            if until is not None and time.monotonic() >= until:
                return
        while waiting and (until is None or time.monotonic() < until):
            yield from _ready(cluster, waiting, until)
    finally:
        for unfinished in waiting:
            cluster.cancel(unfinished, force=True)
        cluster.shutdown()


def _ready(cluster: Any, waiting: dict[Any, Job], until: float | None) -> Results:
    """The next run that is there, or none if the time is up."""
    seconds = None if until is None else max(0.0, until - time.monotonic())
    ready, _ = cluster.wait(list(waiting), num_returns=1, timeout=seconds)
    for reference in ready:
        job = waiting.pop(reference)
        try:
            yield job, cluster.get(reference)
        except cluster.exceptions.RayError as error:  # its machine is gone, for instance
            yield job, Performed(failure(f"Ray: {type(error).__name__}"), 0.0)


def _started(at_once: int, address: str | None) -> Any:
    try:
        import ray as cluster
    except ImportError as error:
        raise EngineError(f"`engine` ray needs Ray: {how_to_install('ray')}") from error
    try:
        if address is None:
            cluster.init(num_cpus=at_once, include_dashboard=False, log_to_driver=False, configure_logging=False)
        else:
            cluster.init(address=address, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise EngineError(f"cannot reach a Ray cluster at `ray_address` {address}: {error}") from error
    return cluster


ENGINES: dict[str, Callable[..., Results]] = {"local": local, "ray": ray}
