"""Running inputs and counting the results. An input is named by its target, the seed and its number: it can be had again."""

import faulthandler
import os
import resource
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import torch

from tests.fuzz.targets import BY_NAME, TARGETS, Target

MOST_GROWTH = 64 << 20  # bytes that all inputs together may add to the peak of one process
MOST_EXAMPLES = 3  # of one kind of failure


def peak_bytes() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@dataclass(frozen=True)
class Failure:
    """Something else than accepting or refusing."""

    target: str
    seed: int
    number: int
    what: str
    raw: bytes

    @property
    def kind(self) -> tuple[str, str]:
        return self.target, self.what.partition(":")[0]

    def text(self) -> str:
        shown = self.raw.hex() if len(self.raw) <= 2000 else f"{self.raw[:2000].hex()}… ({len(self.raw)} bytes)"
        replay = f"python -m tests.fuzz --seed {self.seed} --replay {self.target} {self.number}"
        return f"{self.target}: {self.what}\n  input:  {shown}\n  replay: {replay}"


@dataclass
class Tally:
    """Results of some inputs of one target."""

    inputs: int = 0
    accepted: int = 0
    crashes: int = 0
    slowest_s: float = 0.0  # of processor time: others may use the machine too
    failures: list[Failure] = field(default_factory=list)

    @property
    def refused(self) -> int:
        return self.inputs - self.accepted - self.crashes

    def add(self, other: "Tally") -> None:
        self.inputs += other.inputs
        self.accepted += other.accepted
        self.crashes += other.crashes
        self.slowest_s = max(self.slowest_s, other.slowest_s)
        for failure in other.failures:
            if sum(known.kind == failure.kind for known in self.failures) < MOST_EXAMPLES:
                self.failures.append(failure)


def hostile_input(target: Target, seed: int, number: int) -> bytes:
    return target.hostile(Random(f"{seed}/{target.name}/{number}"))


def run_inputs(target: Target, seed: int, first: int, draws: int, peak: int) -> Tally:
    """Feed so many draws. `peak` is what memory stood at before the first input of all; beyond its bound an input has failed."""
    tally = Tally()
    over = peak_bytes() - peak > MOST_GROWTH
    for number in range(first, first + draws):
        raw = hostile_input(target, seed, number)
        start, what = time.process_time(), ""
        try:
            fed = target.feed(raw)
            tally.add(Tally(fed.inputs, fed.accepted))
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
        tally.slowest_s = max(tally.slowest_s, time.process_time() - start)
        if not what and not over and peak_bytes() - peak > MOST_GROWTH:
            over, what = True, f"memory: the peak has grown by more than {MOST_GROWTH >> 20} MiB"
            tally.add(Tally(-fed.inputs, -fed.accepted))
        if what:
            tally.add(Tally(target.inputs, 0, target.inputs, failures=[Failure(target.name, seed, number, what, raw)]))
    return tally


# In a process of its own


class Chunk(NamedTuple):
    target: str
    first: int
    draws: int


class Done(NamedTuple):
    target: str
    tally: Tally
    process: int
    growth: int  # of this process's peak since before its first input


_peak = 0


def prepare() -> None:
    """Prepare a process: one core each, and everything that is made only once is made before memory is looked at."""
    global _peak
    faulthandler.enable()
    torch.set_num_threads(1)
    for target in TARGETS:
        for number in range(20):
            with suppress(Exception):  # it will be counted when it is an input
                target.feed(target.fresh(Random(number)))
                target.feed(target.hostile(Random(number)))
    _peak = peak_bytes()


def work(chunk: Chunk, seed: int) -> Done:
    tally = run_inputs(BY_NAME[chunk.target], seed, chunk.first, chunk.draws, _peak)
    return Done(chunk.target, tally, os.getpid(), peak_bytes() - _peak)
