"""The ways in which this machine can compute a gradient, some of them as another machine would."""

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

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
    counts: bool = True  # whether members of one run may differ in this


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
    if task.autocast is None:  # else they would measure the mixed precision, which all machines share
        ways.append(Way("float64", one_at_a_time(_in_float64(problem, task))))
        ways.append(Way("float64 by layer", one_at_a_time(_in_float64(problem, rounded_by_layer(task)))))
    ways.append(Way("shaken inputs", one_at_a_time(problem, "shaken")))
    if torch.cuda.is_available():
        other = "cpu" if device.type == "cuda" else "cuda"
        ways.append(Way(other, one_at_a_time(Problem(task, device=other))))
    if device.type == "cuda":
        ways.append(_other_tf32(problem))
    return ways


def bent(problem: Problem) -> Gradients:
    """Gradients that are off by their jumps under stress, and by nothing else."""
    return lambda parameters_D, seeds: torch.stack([bent_gradient(problem, parameters_D, seed) for seed in seeds])


def one_at_a_time(problem: Problem, hardware: str = "") -> Gradients:
    """Compute as `TrainingWork.gradient_now` does, rounded to the float32 that travels."""

    def gradients(parameters_D: Tensor, seeds: Sequence[Seed]) -> Tensor:
        here_D = parameters_D.to(problem.device, problem.dtype)
        return torch.stack([gradient_on(problem, hardware, here_D, seed).cpu().float() for seed in seeds])

    return gradients


def rounded_by_layer(task: Task) -> Task:
    """The same task, each layer's outputs rounded to float32, and on the way back the gradients of these outputs.

    To be computed in float64: within a layer, sums are then so much more precise than what is kept of them that their
    order hardly ever shows.
    """

    def model() -> nn.Module:
        module = task.model()
        for layer in module.modules():
            if not any(True for _ in layer.children()):
                layer.register_forward_hook(_round_outputs)
        return module

    return _changed(task, model=model)


def _round_outputs(_layer: nn.Module, _inputs: Any, outputs: Any) -> Any:
    # Through float32 and back; autograd takes the gradient the same way.
    return tree_map_only(Tensor, lambda t: t.float().double() if t.dtype == torch.float64 else t, outputs)


def _in_float64(problem: Problem, task: Task) -> Problem:
    """Batched as the plain way is, so that their times compare."""
    return Problem(task, device=problem.device, dtype=torch.float64, one_by_one=bool(problem.why_one_by_one))


def _other_tf32(problem: Problem) -> Way:
    """With TensorFloat-32, to see its price; or without, as GPUs compute that lack it."""
    asked = problem.task.tf32
    other = Problem(_changed(problem.task, tf32=not asked), device=problem.device)
    return Way(f"TF32 {'off' if asked else 'on'}", one_at_a_time(other), counts=asked)


def _changed(task: Task, **attributes: Any) -> Task:
    """A copy of a task with other attributes; tasks are frozen, and some of their options are no fields."""
    other = copy.copy(task)
    for name, value in attributes.items():
        object.__setattr__(other, name, value)
    return other


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
