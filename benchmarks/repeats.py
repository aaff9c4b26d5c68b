"""Whether gradients repeat on a GPU that is busy: `python -m benchmarks.repeats TASK TASK … --seconds 150`.

Every task is trained by sixteen honest peers in a process of its own, all at the same time, and every gradient is computed twice.
Kernels that race do so where others crowd the processors that they run on, so one task in one process shows little. Prints how many
gradients differed, and in which tensors.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

from troth.training import Batch, Problem
from troth.workshop.simulation import Scenario, start


@dataclass
class Found:
    """What one process has seen."""

    task: str
    steps: int = 0
    gradients: int = 0
    differing: int = 0
    tensors: Counter[str] = field(default_factory=Counter)  # in which they differed, by name
    bans: int = 0

    def __str__(self) -> str:
        where = ", ".join(f"{name} ({count})" for name, count in self.tensors.most_common(5)) or "none"
        return f"| {self.task} | {self.steps} | {self.gradients} | {self.differing} | {where} | {self.bans} |"


@contextmanager
def computed_twice(found: Found) -> Any:
    """Compute every gradient once more, and compare."""
    once = Problem.begin_gradient

    def twice(self: Problem, flat_D: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        loss, first_D = once(self, flat_D, batch)
        second_D = once(self, flat_D, batch)[1]
        found.gradients += 1
        if not torch.equal(first_D, second_D):
            found.differing += 1
            pairs = zip(self.layout.views(first_D).items(), self.layout.views(second_D).values(), strict=True)
            found.tensors.update(name for (name, one), other in pairs if not torch.equal(one, other))
        return loss, first_D

    Problem.begin_gradient = twice  # type: ignore[method-assign]
    try:
        yield
    finally:
        Problem.begin_gradient = once  # type: ignore[method-assign]


def train(job: tuple[str, str, float]) -> Found:
    """Train until the time is over; getting ready counts too, so that all end together."""
    torch.set_num_threads(1)
    task, device, ends = job
    found = Found(task)
    with computed_twice(found):
        run = start(Scenario(task=task, steps=100_000, device=device, one_by_one=True), evidence=False)
        for report in run:
            found.steps, found.bans = report.step, found.bans + len(report.bans)
            if time.time() > ends:
                break
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", help="as `troth simulate --task` takes them; one process each")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=150.0)
    options = parser.parse_args(arguments)
    jobs = [(task, options.device, time.time() + options.seconds) for task in options.tasks]
    print(f"{len(jobs)} processes for {options.seconds:g} seconds …", file=sys.stderr, flush=True)
    print("| task | steps | gradients, each twice | differed | in | bans |\n| --- | --- | --- | --- | --- | --- |")
    with get_context("spawn").Pool(len(jobs)) as pool:
        for found in pool.imap(train, jobs):
            print(found, flush=True)


if __name__ == "__main__":
    main()
