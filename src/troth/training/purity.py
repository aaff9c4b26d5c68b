"""A check that a task is a pure function of (parameters, seed): if it is not, honest peers accuse each other."""

import numpy as np
import torch
from torch import Tensor

from troth.crypto import derive
from troth.training import file_reads
from troth.training.errors import TaskError
from troth.training.problem import Problem
from troth.training.randomness.watch import disturb, without_chance
from troth.training.task import Batch, Task


def check_pure(task: Task, problem: Problem | None = None) -> None:
    """Raise `TaskError`, saying what to change, unless the task gives the same bits for the same seed.

    A batch and a gradient are recomputed after disturbing every global generator and after another seed's gradient, so
    that hidden randomness and hidden state both show. Files that are read must be declared.
    """
    with file_reads.watching(task):
        problem = problem or Problem(task)
        flat_D = _check_initial(problem)
        first, second = _check_batch(problem)
        _check_loss(problem, flat_D, first, second)
    file_reads.check_declared(task)


def _check_initial(problem: Problem) -> Tensor:
    flat_D = without_chance(
        "model()", "use PyTorch's, whose numbers come from the run's stream", lambda: problem.initial(0)
    )
    disturb()
    before, again = problem.layout.views(flat_D), problem.layout.views(problem.initial(0))
    for name in before:
        if not torch.equal(before[name], again[name]):
            raise TaskError(
                f"parameter '{name}' is left to chance: draw it with PyTorch in model(), or from the stream in initialise()"
            )
    constants = problem.constants()
    disturb()
    for name, tensor in problem.constants().items():
        if not torch.equal(tensor, constants[name]):
            raise TaskError(f"'{name}', which is not trained, is left to chance: model() must give it the same values")
    return flat_D


def _check_batch(problem: Problem) -> tuple[Batch, Batch]:
    seed, other = derive(0, "purity", 0), derive(0, "purity", 1)
    remedy = "draw from the stream that batch() is given"
    first = without_chance("batch()", remedy, lambda: problem.batch(seed))
    second = without_chance("batch()", remedy, lambda: problem.batch(other))
    disturb()
    if (name := _difference(first, problem.batch(seed))) is not None:
        raise TaskError(
            f"batch() gives another '{name}' for the same seed: draw everything from its stream, and keep no state"
        )
    if _difference(problem.task_part(first), problem.task_part(second)) is None:
        raise TaskError("batch() ignores its seed: every peer would compute the same gradient")
    return first, second


def _check_loss(problem: Problem, flat_D: Tensor, first: Batch, second: Batch) -> None:
    kept = {name: tensor.clone() for name, tensor in first.items()}
    buffers = {name: buffer.clone() for name, buffer in problem.buffers().items()}
    parameters_before_D = flat_D.clone()
    remedy = "use PyTorch's functions, which follow the batch's seed, or draw it in batch()"
    loss, gradient_D = without_chance("loss()", remedy, lambda: problem.gradient(flat_D, first))
    if (changed := _difference(first, kept)) is not None:
        raise TaskError(f"loss() changes its batch in place ('{changed}'): work on a copy")
    for name, now in problem.buffers().items():
        if not torch.equal(now, buffers[name]):
            raise TaskError(f"the model changes its buffer '{name}' in training: a step would depend on those before")
    if not (np.isfinite(loss) and bool(torch.isfinite(gradient_D).all())):
        raise TaskError("loss() or its gradient is not finite at the first parameters")
    problem.gradient(flat_D, second)
    disturb()
    _, again_D = problem.gradient(flat_D, first)
    if not torch.equal(gradient_D, again_D):
        where, why = _different_parameters(problem, gradient_D, again_D), _nondeterministic(problem, flat_D, first)
        raise TaskError(
            f"loss() gives another gradient for the same parameters and batch{where}: it keeps state or uses chance{why}"
        )
    if not torch.equal(flat_D, parameters_before_D):
        raise TaskError("loss() changes the parameters in place")


def _different_parameters(problem: Problem, left_D: Tensor, right_D: Tensor) -> str:
    left, right = problem.layout.views(left_D), problem.layout.views(right_D)
    names = [name for name in left if not torch.equal(left[name], right[name])]
    return f" (of '{names[0]}'{f' and {len(names) - 1} more' if len(names) > 1 else ''})"


def _nondeterministic(problem: Problem, flat_D: Tensor, batch: Batch) -> str:
    """PyTorch's own word on the operation, where it knows one that gives other bits each time."""
    asked = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        problem.gradient(flat_D, batch)
    except TaskError as error:
        return f"; PyTorch says: {str(error.__cause__ or error).splitlines()[0]}"
    finally:
        torch.use_deterministic_algorithms(asked)
    return ""


def _difference(left: Batch, right: Batch) -> str | None:
    """The first tensor in which two batches differ."""
    for name in [*left, *right]:
        if name not in left or name not in right or left[name].dtype != right[name].dtype:
            return name
        if not torch.equal(left[name], right[name]):
            return name
    return None
