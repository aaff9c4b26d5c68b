"""Run a sweep: everything that is not in its folder yet."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from sys import stderr
from typing import Any, NamedTuple

import torch

from troth.errors import OperatorError, how_to_install
from troth.evidence.file_format import RunSummary, finite_or_none
from troth.plugins import blamed, in_one_line
from troth.processes import Died, work_through
from troth.workshop.lab.results import Store
from troth.workshop.lab.sweep import Sweep, SweepJob, SweepPlan, key_of
from troth.workshop.simulation import start

# One run of a sweep, in whatever process it is: from its options to what goes into the results

_CHANGED = "a file that it names, or Troth itself, is not the one that the sweep began with: run the sweep again"


class Performed(NamedTuple):
    """Results of a run, or the reason why there are none; and how long it took, which is nobody's result."""

    found: dict[str, Any]
    seconds: float

    @property
    def failed(self) -> bool:
        return "error" in self.found


def perform(job: SweepJob) -> Performed:
    """Run a job to its end with one thread. An error is a result: the other runs go on."""
    torch.set_num_threads(1)  # runs share the cores, and bits must not depend on how
    torch.set_default_dtype(torch.float32)  # a user's own file in a run before may have left another
    began = time.monotonic()
    try:
        with job.at_its_place(), redirect_stdout(stderr):  # what a user's own file prints is not our output
            scenario = job.scenario()
            if key_of(scenario.config()) != job.key:
                return Performed(failure(_CHANGED), 0.0)
            found = _found(start(scenario, evidence=False).finish().summary)
    except Exception as error:
        found = failure(blamed(error) or in_one_line(error))
    return Performed(found, time.monotonic() - began)


def failure(why: str) -> dict[str, Any]:
    return {"error": why}


def _found(summary: RunSummary) -> dict[str, Any]:
    details = summary.details
    outcome = {
        "steps": summary.steps,
        "byzantine": summary.byzantine,
        "parameters": details["parameters"],
        "attacked_steps": details["attacked_steps"],
        "diverged_at": details["diverged_at"],
        "gradients": details["gradients_computed"],
        "assumed_byzantine": details.get("assumed_byzantine"),
        "removed": details.get("removed", {}),
    }
    if details.get("unused_shards"):
        outcome["unused_shards"] = True
    if "banned" in details:
        outcome |= {
            "bans": [{name: ban[name] for name in ("peer", "step", "reason")} for ban in details["banned"]],
            **{
                name: details[name]
                for name in ("honest_banned", "absent", "stalled", "agreement", "audits", "tolerant_audits", "trials")
            },
            **{name: details[name] for name in ("announced_bytes_per_step", "bulk_bytes_per_step")},
        }
    found: dict[str, Any] = finite_or_none({"metrics": summary.metrics, "curve": summary.curve, "outcome": outcome})
    return found


# Engines: where the runs of a sweep are made. All give the same results, in an order of their own.


Results = Generator[tuple[SweepJob, Performed]]
Engine = Callable[
    [Sequence[SweepJob], int, float | None], Results
]  # jobs, how many at a time, when to stop (monotonic)


class EngineError(OperatorError):
    """An engine that is not here."""


def local(jobs: Sequence[SweepJob], at_once: int, until: float | None) -> Results:
    """On processes of this machine."""
    with closing(work_through(perform, jobs, at_once, until)) as done:
        for job, performed in done:
            yield job, Performed(failure(str(performed)), 0.0) if isinstance(performed, Died) else performed


def ray(jobs: Sequence[SweepJob], at_once: int, until: float | None, address: str | None = None) -> Results:
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


def _ready(cluster: Any, waiting: dict[Any, SweepJob], until: float | None) -> Results:
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


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is, after each of its runs."""

    done: int  # in this call
    of: int
    kept: int  # from before
    failed: int


def run_sweep(
    sweep: Sweep,
    plan: SweepPlan,
    folder: Path,
    engine: Engine,
    *,
    at_once: int,
    only: SweepPlan | None = None,
    until: float | None = None,
    extend: bool = False,
    on_run: Callable[[SweepProgress, SweepJob | None, Performed | None], None] = lambda *_: None,
) -> Store:
    """Make the runs that are missing, or those of them that are in `only`, and keep each as soon as it is there.

    Interrupted, by the time limit or by Ctrl-C, it loses the runs under way; called again, it makes them and the rest.
    """
    store = Store(folder, sweep, plan.cells, extend=extend)
    wanted = (only or plan).jobs()
    jobs = [job for job in wanted if job.key in store.missing]
    progress = SweepProgress(0, len(jobs), len(wanted) - len(jobs), 0)
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
