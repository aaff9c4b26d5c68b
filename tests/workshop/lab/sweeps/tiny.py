"""A sweep of a second, and an engine that needs no process."""

from collections.abc import Sequence
from pathlib import Path

from troth.workshop.lab.run import Results, perform
from troth.workshop.lab.sweep import Sweep, SweepJob
from troth.workshop.lab.sweep_file import parse_sweep

TINY = """
name = "tiny"
seeds = [0, 1]
[fixed]
task = "quadratic:dimension=40"
peers = 4
byzantine = 1
steps = 4
when = "middle"
[axes]
attack = ["none", "sign-flip"]
defence = ["troth", "mean", {label = "krum of one", defence = "krum", byzantine = 1}]
"""


def tiny(folder: Path, text: str = TINY) -> Sweep:
    return parse_sweep(text, folder)


def inline(jobs: Sequence[SweepJob], *_: object) -> Results:
    for job in jobs:
        yield job, perform(job)
