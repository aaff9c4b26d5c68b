"""What liars can hide where audits allow for other hardware: `python -m benchmarks.hidden_lies` writes docs/attacks/hide.md.

Seven of sixteen peers lie in every step, by a share of the 2.5h above which jurors convict, against the honest mean; ten minutes
on two idle cores.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import mean
from typing import Any

import torch

from benchmarks.attack_pages import DOCS, LIARS, machine
from benchmarks.marked import fill
from troth.workshop.simulation import Scenario, simulate

TANH, RELU = "digits:activation=tanh", "digits"
SEEDS, STEPS = {TANH: (0, 1), RELU: (0,)}, 200
H = {TANH: 3.1e-5, RELU: 0.01}  # what the doctor recommends; the most that it would, since for ReLU it recommends none


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    who: str
    share: float | None  # None: nobody lies
    classes: int = 2
    tolerant: bool = True  # whether the run has agreed on an h
    disguise: bool = True

    def scenario(self, task: str, seed: int) -> Scenario:
        lies = {} if self.share is None else self._lies(H[task])
        deviation = H[task] if self.tolerant else None
        return Scenario(
            task=task,
            machines="cpu:peers=8,float64=true" if self.classes == 2 else "",
            deviation=deviation,
            steps=STEPS,
            evaluate_every=STEPS,
            seed=seed,
            attack_start=0,
            **lies,
        )

    def _lies(self, h: float) -> dict[str, Any]:
        disguise = "" if self.disguise else ",disguise=false"
        return {"byzantine": LIARS, "attack": f"hide:deviation={h:g},share={self.share:g}{disguise}"}


CASES = (
    Case("two classes of eight, nobody lies", None),
    Case("one class, exact audits", 0.9, classes=1, tolerant=False),
    Case("one class, a run with h, liars own up to their class", 0.9, classes=1, disguise=False),
    Case("one class, a run with h, liars name another class", 0.9, classes=1),
    *(Case("two classes of eight, liars name another class", share) for share in (0.5, 0.9, 1.5)),
)
TASKS = {TANH: CASES, RELU: tuple(case for case in CASES if case.classes == 2)}


@dataclass(frozen=True)
class Outcome:
    accuracy: float
    loss: float
    banned: list[int]  # steps
    honest_banned: int


def outcome(job: tuple[str, Case, int]) -> Outcome:
    torch.set_num_threads(1)
    task, case, seed = job
    summary = simulate(case.scenario(task, seed)).summary
    assert summary.details["agreement"]
    return Outcome(
        summary.metrics["accuracy"],
        summary.metrics["loss"],
        [ban["step"] for ban in summary.details["banned"] if ban["peer"] in summary.byzantine],
        summary.details["honest_banned"],
    )


def table(task: str, found: dict[tuple[str, Case, int], Outcome]) -> str:
    rows = []
    for case in TASKS[task]:
        runs = [found[task, case, seed] for seed in SEEDS[task]]
        size = "–" if case.share is None else f"{case.share:g} · 2.5h"
        firsts = [f"{min(run.banned)}" if run.banned else "never" for run in runs]
        bans = "–" if case.share is None else ", ".join(str(len(run.banned)) for run in runs)
        first = "–" if case.share is None else ", ".join(firsts)
        rows.append(
            f"| {case.who} | {size} | {bans} | {first} | {sum(run.honest_banned for run in runs)} | "
            f"{mean(run.accuracy for run in runs):.2%} | {lost(task, case, found):+.2f} | {mean(run.loss for run in runs):.4f} |"
        )
    return f"""
`--task {task} --hardware-deviation {H[task]:g}`, seed{"s" if len(SEEDS[task]) > 1 else ""} {" and ".join(map(str, SEEDS[task]))}:

| who is who | lie | liars banned, of {LIARS} | the first in step | honest banned | accuracy | points lost | loss |
| --- | --- | --- | --- | --- | --- | --- | --- |
{chr(10).join(rows)}
"""


def lost(task: str, case: Case, found: dict[tuple[str, Case, int], Outcome]) -> float:
    """Points of accuracy, against nobody lying."""
    calm, lied = (mean(found[task, which, seed].accuracy for seed in SEEDS[task]) for which in (TASKS[task][0], case))
    return 100 * (calm - lied)


def main() -> None:
    jobs = [(task, case, seed) for task, cases in TASKS.items() for case in cases for seed in SEEDS[task]]
    found: dict[tuple[str, Case, int], Outcome] = {}
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for job, ended in zip(jobs, pool.map(outcome, jobs), strict=True):
            found[job] = ended
            print(job, ended, flush=True)
    write(found)


def write(found: dict[tuple[str, Case, int], Outcome]) -> None:
    """Write the page's figures."""
    unseen = max(
        lost(task, case, found)
        for task, case, _ in found
        if case.tolerant and case.disguise and 0 < (case.share or 0) < 1
    )
    text = f"""
16 peers, {LIARS} of them lie from step 0 of {STEPS} on. `troth doctor` finds h = {H[TANH]:g} for tanh; for ReLU it recommends one class,
and the run takes the most that it would ever recommend. Bans by seed; accuracy and loss are means. An image
of the test set is 0.28 points. Lies that name another class and stay below 2.5h cost {unseen:.2f} points at most, in accuracy on
ordinary images: a backdoor shows in none of these figures (see above). Written by
`python -m benchmarks.hidden_lies` on {machine()}.
"""
    text += "".join(table(task, found) for task in TASKS)
    fill(DOCS / "hide.md", {"measured": text})
    print(text)


if __name__ == "__main__":
    main()
