"""The ways in which this machine can compute a gradient, some of them as another machine would."""

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from troth.crypto import Seed
from troth.training.determinism import threads
from troth.training.hardware.imitation import bent_gradient, gradient_on
from troth.training.problem import Problem
from troth.training.task import Task

# S seeds, D coordinates

Gradients = Callable[[Tensor, Sequence[Seed]], Tensor]  # parameters, seeds -> gradients_SD


class Way(NamedTuple):
    """One way to compute gradients, to be compared with the plain one."""

    name: str
    gradients: Gradients
    timed: bool = True  # imitations take as long as imitating takes


def ways_of(problem: Problem, peers: int) -> list[Way]:
    """Everything that this machine can do differently, and imitations of another machine."""
    task, device = problem.task, problem.device
    ways: list[Way] = []
    if device.type == "cpu":
        ways += [Way(name, _with_threads(count, problem)) for name, count in _thread_counts()]
    ways.append(Way("one by one", one_at_a_time(Problem(task, device=device, one_by_one=True))))
    together = Problem(task, device=device)
    if not together.why_one_by_one:
        ways.append(Way(f"{peers} in one call", _in_one_call(together)))
    if task.autocast is None:  # else it would measure the mixed precision, which all machines share
        ways.append(Way("float64", one_at_a_time(_in_float64(problem, task))))
    ways.append(Way("shaken inputs", one_at_a_time(problem, "shaken"), timed=False))
    if (other := _other_device(problem)) is not None:
        ways.append(Way(other, one_at_a_time(Problem(task, device=other))))
    if task.tf32 and device.type == "cuda":  # as GPUs compute that lack it
        ways.append(Way("TF32 off", one_at_a_time(Problem(changed(task, tf32=False), device=device))))
    return ways


def bent(problem: Problem) -> Gradients:
    """Gradients that are off by their jumps under stress, and by nothing else."""
    return lambda parameters_D, seeds: torch.stack([bent_gradient(problem, parameters_D, seed) for seed in seeds])


def one_at_a_time(problem: Problem, hardware: str = "") -> Gradients:
    """Compute as `TrainingWork.gradient_now` does, rounded to the float32 that travels."""

    def gradients(parameters_D: Tensor, seeds: Sequence[Seed]) -> Tensor:
        here_D = parameters_D.to(problem.device, problem.dtype)
        computed = (gradient_on(problem, hardware, here_D, seed) for seed in seeds)
        return torch.stack([each_D.cpu().float() for each_D in computed])

    return gradients


def changed(task: Task, **attributes: Any) -> Task:
    """A copy of a task with other attributes; tasks are frozen, and some of their options are no fields."""
    other = copy.copy(task)
    for name, value in attributes.items():
        object.__setattr__(other, name, value)
    return other


def _other_device(problem: Problem) -> str | None:
    if not torch.cuda.is_available():
        return None
    return "cpu" if problem.device.type == "cuda" else "cuda"


def _in_float64(problem: Problem, task: Task, device: str | None = None) -> Problem:
    """Batched as the plain way is, so that their times compare."""
    one_by_one = bool(problem.why_one_by_one)
    return Problem(task, device=device or problem.device, dtype=torch.float64, one_by_one=one_by_one)


def _thread_counts() -> list[tuple[str, int]]:
    cores = os.cpu_count() or 1
    return [("1 thread", 1), *([(f"{cores} threads", cores)] if cores > 1 else [])]


def _in_one_call(problem: Problem) -> Gradients:
    def gradients(parameters_D: Tensor, seeds: Sequence[Seed]) -> Tensor:
        return problem.gradients(parameters_D, [problem.batch(seed) for seed in seeds])[1].cpu()

    return gradients


def _with_threads(count: int, problem: Problem) -> Gradients:
    def gradients(parameters_D: Tensor, seeds: Sequence[Seed]) -> Tensor:
        with threads(count):
            return one_at_a_time(problem)(parameters_D, seeds)

    return gradients
