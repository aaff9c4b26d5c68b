"""The ways in which this machine can compute a gradient, some of them as another machine would."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from troth.crypto import Seed
from troth.training.determinism import threads
from troth.training.hardware.imitation import bent_gradient, gradient_on
from troth.training.hardware.layers import changed, rounded_by_layer, shaken_sums
from troth.training.problem import Problem
from troth.training.task import Task

# S seeds, D coordinates

_LAYER = "float64 by layer"

Gradients = Callable[[Tensor, Sequence[Seed]], Tensor]  # parameters, seeds -> gradients_SD


class Way(NamedTuple):
    """One way to compute gradients, to be compared with the plain one, or with an earlier way."""

    name: str
    gradients: Gradients
    counts: bool = True  # whether it is how a member of this run might compute
    against: str = ""  # the name of the earlier way; "": the plain one
    timed: bool = True  # imitations take as long as imitating takes


def ways_of(problem: Problem, peers: int, *, counted_only: bool = False) -> list[Way]:
    """Everything that this machine can do differently, and imitations of another machine.

    `counted_only`: without ways in which no member computes.
    """
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
    by_layer = () if task.autocast is not None or counted_only else _by_layer(problem)
    return [*ways, *by_layer, *(_other_tf32(problem) if task.tf32 or not counted_only else ())]


def bent(problem: Problem) -> Gradients:
    """Gradients that are off by their jumps under stress, and by nothing else."""
    return lambda parameters_D, seeds: torch.stack([bent_gradient(problem, parameters_D, seed) for seed in seeds])


def one_at_a_time(problem: Problem, hardware: str = "", last: Callable[[Tensor], Tensor] | None = None) -> Gradients:
    """Compute as `TrainingWork.gradient_now` does, rounded to the float32 that travels; `last` comes before the rounding."""

    def gradients(parameters_D: Tensor, seeds: Sequence[Seed]) -> Tensor:
        here_D = parameters_D.to(problem.device, problem.dtype)
        computed = (gradient_on(problem, hardware, here_D, seed) for seed in seeds)
        return torch.stack([(last(each_D) if last else each_D).cpu().float() for each_D in computed])

    return gradients


def _by_layer(problem: Problem) -> Iterator[Way]:
    """Not how members compute: it shows what it would cost if they did, and how many gradients would then be the same."""
    task, other = rounded_by_layer(problem.task), _other_device(problem)
    yield Way(_LAYER, one_at_a_time(_in_float64(problem, task)), counts=False)
    shaken = _in_float64(problem, rounded_by_layer(problem.task, shaken=True))
    other_sums = one_at_a_time(shaken, last=shaken_sums)
    yield Way(f"{_LAYER}, shaken sums", other_sums, counts=False, against=_LAYER, timed=False)
    if other is not None:
        there = one_at_a_time(_in_float64(problem, task, other))
        yield Way(f"{_LAYER}, {other}", there, counts=False, against=_LAYER)


def _other_tf32(problem: Problem) -> Iterator[Way]:
    """With TensorFloat-32, to see its price; or without, as GPUs compute that lack it."""
    if problem.device.type != "cuda":
        return
    asked = problem.task.tf32
    name, other = f"TF32 {'off' if asked else 'on'}", Problem(changed(problem.task, tf32=not asked), device="cuda")
    yield Way(name, one_at_a_time(other), counts=asked)
    yield Way(f"{name}, shaken inputs", one_at_a_time(other, "shaken"), counts=False, against=name, timed=False)


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
