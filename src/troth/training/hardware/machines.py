"""Real classes of hardware in one process: peers that compute their gradients on another device, or in another way.

Such a peer has nothing of the run's device but the bytes that would have reached it over a network: it copies the
parameters, draws its batch from the public seed, and computes with a `Problem` of its own.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from troth.crypto import Digest
from troth.specs import ALSO, build, parse_spec, pick
from troth.training.determinism import threads
from troth.training.hardware.classes import PROBE_SEED, digest_of_class
from troth.training.problem import Problem
from troth.training.task import Batch, Task

# D coordinates

_MOST_THREADS = 1024


@dataclass(frozen=True)
class MachineSpec:
    """So many peers that compute on one kind of machine."""

    peers: int = 1
    threads: int = 0  # of PyTorch's, on a CPU; 0: as many as the process has
    float64: bool = False  # in float64, rounded to float32 at the end: other bits where nothing else gives any

    device: ClassVar[str]

    def __post_init__(self) -> None:
        if self.peers < 1:
            raise ValueError(f"peers must be at least 1, got {self.peers}")
        if not 0 <= self.threads <= _MOST_THREADS:
            raise ValueError(f"threads must be from 0 to {_MOST_THREADS}, got {self.threads}")


class OnCPU(MachineSpec):
    device = "cpu"


class OnCUDA(MachineSpec):
    device = "cuda"


MACHINES: dict[str, type[MachineSpec]] = {"cpu": OnCPU, "cuda": OnCUDA}


def make_machines(specs: str) -> list[MachineSpec]:
    """`cpu:peers=4`, or several with ` + ` between them; none for an empty string."""
    named = [(spec, *parse_spec(spec)) for spec in specs.split(ALSO) if spec]
    return [build(pick(MACHINES, name, "machine"), options, spec) for spec, name, options in named]


class Job(NamedTuple):
    """A gradient to compute."""

    parameters_D: Tensor  # wherever they lie
    batch: Batch  # drawn by the machine's own problem


class Machine:
    """Computes gradients as peers of one class do. Bits depend on parameters and batch, not on what is computed beside them."""

    def __init__(self, task: Task, spec: MachineSpec) -> None:
        self._task, self._spec = task, spec
        self._threads = spec.threads or torch.get_num_threads()
        self.problem = self._problem()
        self._problems = [
            self.problem
        ]  # one for each of the workers: a module takes the parameters of one call at a time

    def gradient(self, parameters_D: Tensor, batch: Batch) -> tuple[float, Tensor]:
        """Loss and gradient of one batch: float32, as it travels, on this machine."""
        return self._computed(self.problem, Job(self._copied(parameters_D), batch))

    def gradients(self, jobs: Sequence[Job]) -> list[tuple[float, Tensor]]:
        """The same of several batches, side by side where each of them needs a core and no more."""
        workers = min(len(jobs), os.cpu_count() or 1) if self._threads == 1 and self.problem.device.type == "cpu" else 1
        copies = {id(job.parameters_D): self._copied(job.parameters_D) for job in jobs}  # by this thread, on its stream
        here = [Job(copies[id(job.parameters_D)], job.batch) for job in jobs]
        if workers <= 1:
            return [self._computed(self.problem, job) for job in here]
        self._problems += [self._problem() for _ in range(workers - len(self._problems))]

        def share_of(worker: int) -> list[tuple[float, Tensor]]:
            return [self._computed(self._problems[worker], job) for job in here[worker::workers]]

        shares = list(self._aside.map(share_of, range(workers)))
        return [shares[number % workers][number // workers] for number in range(len(here))]

    @cached_property
    def class_digest(self) -> Digest:
        """Digest of the class, as `class_digest` makes it of a peer's own problem."""
        batch = self.problem.batch(PROBE_SEED)
        return digest_of_class(self.problem, self.gradient(self.problem.initial(0), batch)[1])

    @cached_property
    def _aside(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="machine")

    def _problem(self) -> Problem:
        dtype = torch.float64 if self._spec.float64 else torch.float32
        return Problem(self._task, device=self._spec.device, dtype=dtype, one_by_one=True)

    def _copied(self, parameters_D: Tensor) -> Tensor:
        return parameters_D.detach().to(self.problem.device, self.problem.dtype)

    def _computed(self, problem: Problem, job: Job) -> tuple[float, Tensor]:
        with threads(self._threads):
            loss, gradient_D = problem.gradient(job.parameters_D, job.batch)
        return loss, gradient_D.float()
