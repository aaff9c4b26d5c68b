"""What a thinking attacker still gets, in figures: `make promises` writes docs/promises.md.

Every row is a set of simulated runs of the real protocol; the page says what each shows, and misses are in it as they are.
"""

import platform
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import torch
from rich.progress import Progress

from benchmarks.marked import fill, table
from troth.workshop.simulation import ProtocolSimulation, Scenario

ROOT = Path(__file__).parent.parent
TASKS = ROOT / "tests" / "protocol" / "tasks"
STEPS = 60  # of most runs
TITLES = (
    "what",
    "runs",
    "accuracy, %",
    "liars banned",
    "last ban in step",
    "steps that moved the model",
    "trials",
    "honest banned",
    "stalled",
)
SEEDS = range(5)


@dataclass(frozen=True)
class Case:
    """Some options of a run, and the row of the page that it belongs to."""

    row: str
    options: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What came of it."""

    accuracy: float | None
    banned: int
    honest_banned: int
    last_ban: int | None
    moved: int
    steps: int
    trials: int
    stalled: bool


def cases() -> list[Case]:
    """The longest first."""
    found = [
        Case("honest", {"task": task, "peers": peers, "optimizer": optimizer, "rate": rate, "steps": 400})
        for peers in (16, 8, 5)
        for task in ("digits", str(TASKS / "transformer.py"))
        for optimizer, rate in (("sgd", 0.1), ("adamw", 0.003))
    ]
    liars: dict[str, object] = {"byzantine": 7, "steps": STEPS}
    for seed in SEEDS:
        for task in ("digits", "digits-cnn"):
            found.append(Case(f"{task}, nobody lies", {"task": task, "steps": STEPS, "seed": seed}))
            for at in (0, 20, STEPS - 1):
                once = {"attack_start": at, "attack_stop": at + 1, "task": task, "seed": seed}
                found.append(Case(f"{task}, 1e30 in step {at}", {**liars, **once, "attack": "covered-once:scale=1e30"}))
        edge: dict[str, object] = {**liars, "attack": "covered-once:scale=edge", "attack_start": 20, "seed": seed}
        found.append(Case("digits, edge in one step", {**edge, "attack_stop": 21}))
        found.append(Case("digits, edge from step 20 on", {**edge, "steps": 150}))
    cheap: dict[str, object] = {"task": "quadratic:dimension=60", "byzantine": 7, "attack_start": 5}
    found += [Case("reroll", {**cheap, "attack": "reroll", "steps": 200, "seed": seed}) for seed in range(20)]
    found += [Case("leave", {**cheap, "attack": "leave", "steps": 40, "seed": seed}) for seed in SEEDS]
    grid = [
        {"task": task, "peers": 8, "steps": 8, "tau": 10.0**power, "byzantine": liars_there, "attack_start": 2}
        for task in ("digits", *map(str, (TASKS / "embedding.py", TASKS / "zero_head.py")))
        for power in (-6, -4, -2, 0, 3)
        for liars_there in (0, 3)
    ]
    found += [
        Case("grid, subnormals" if options["byzantine"] else "grid, nobody lies", {**options, "attack": "subnormal"})
        for options in grid
    ]
    return found


def run(case: Case) -> Result:
    torch.set_num_threads(1)
    simulation = ProtocolSimulation(Scenario(**{"evaluate_every": 1000, **case.options}))  # type: ignore[arg-type]
    accuracy, moved, steps = None, 0, 0
    for report in simulation.steps():
        accuracy = (report.metrics or {}).get("accuracy", accuracy)
        moved, steps = moved + report.moved, steps + 1
        if case.row == "reroll" and len(simulation.bans) == 7:
            break
    liars = set(simulation.byzantine)
    banned = [ban for ban in simulation.bans if ban.peer in liars]
    last = max((ban.step for ban in banned), default=None)
    honest = len(simulation.bans) - len(banned)
    stalled = simulation.stalled is not None
    return Result(accuracy, len(banned), honest, last, moved, steps, simulation.trials, stalled)


def line(row: str, results: list[Result]) -> tuple[object, ...]:
    accuracies = [100 * one.accuracy for one in results if one.accuracy is not None]
    lasts = [one.last_ban for one in results if one.last_ban is not None]
    return (
        row,
        len(results),
        f"{mean(accuracies):.1f} ({min(accuracies):.1f} to {max(accuracies):.1f})" if accuracies else "",
        f"{mean(one.banned for one in results):.1f}",
        f"{mean(lasts):.1f}" if lasts else "",
        f"{sum(one.moved for one in results)} of {sum(one.steps for one in results)}",
        sum(one.trials for one in results),
        sum(one.honest_banned for one in results),
        sum(one.stalled for one in results),
    )


def rows(results: dict[str, list[Result]], missing: int) -> str:
    late = f"\n{missing} runs did not end in time, and are left out." if missing else ""
    found = table(TITLES, [line(row, found) for row, found in sorted(results.items())])
    return f"{found}\nOn {platform.machine()}, PyTorch {torch.__version__}.\n{late}"


def gather(wanted: Iterable[Case], most_s: float | None = None) -> tuple[dict[str, list[Result]], int]:
    """As many runs at a time as there are processors; with `most_s`, those that end within it."""
    results: dict[str, list[Result]] = {}
    everything = list(wanted)
    pool = ProcessPoolExecutor()
    with Progress() as progress:
        bar = progress.add_task("runs", total=len(everything))
        jobs = {pool.submit(run, case): case for case in everything}
        try:
            for job in as_completed(jobs, timeout=most_s):
                results.setdefault(jobs[job].row, []).append(job.result())
                progress.advance(bar)
        except TimeoutError:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list((pool._processes or {}).values()):
                process.kill()
    return results, len(everything) - sum(map(len, results.values()))


def main(most_s: float | None = None, page: Path = ROOT / "docs" / "promises.md") -> None:
    fill(page, {"runs": rows(*gather(cases(), most_s))})
    print(page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
