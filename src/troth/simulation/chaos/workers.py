"""Verdicts on many worlds, each played in one of several processes."""

from collections.abc import Generator, Iterable

from troth.processes import Died, work_through
from troth.simulation.chaos.judge import Verdict, judge
from troth.simulation.chaos.plan import Plan


def judge_all(plans: Iterable[Plan], processes: int, until: float | None = None) -> Generator[Verdict]:
    """Verdicts as they come, until all are there or `until` by `time.monotonic`. Close the generator to stop earlier."""
    done = work_through(judge, plans, processes, until)
    try:
        for plan, found in done:
            yield Verdict(plan.seed, str(plan), [f"crash: {found}"]) if isinstance(found, Died) else found
    finally:
        done.close()
