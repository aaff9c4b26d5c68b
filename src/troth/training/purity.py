"""A check that a task is a pure function of (parameters, seed): if it is not, honest peers accuse each other."""

import warnings
from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from troth.crypto import derive
from troth.errors import OperatorError
from troth.training import determinism
from troth.training.determinism import operation_without_version, threads
from troth.training.optimizers import make_optimizer
from troth.training.problem import Problem
from troth.training.random_answers import disturb, without_chance
from troth.training.task import Batch, Task, TaskError

_REPEATS = 3  # gradients that must all be equal where it is to be shown that a task itself repeats


def check_pure(task: Task, problem: Problem | None = None) -> None:
    """Raise `TaskError`, saying what to change, unless the task gives the same bits for the same seed.

    A batch and a gradient are recomputed after disturbing every global generator and after another seed's gradient, so
    that hidden randomness and hidden state both show. Files that are read must be declared.
    """
    _check_defaults(task)
    with determinism.watching(task):
        problem = problem or Problem(task)
        flat_D = _check_initial(problem)
        first, second = _check_batch(problem)
        _check_loss(problem, flat_D, first, second)
    determinism.check_declared(task)


def _check_defaults(task: Task) -> None:
    """Numbers and names that a task suggests."""
    try:
        make_optimizer(task.optimizer)
    except OperatorError as error:
        raise TaskError(f"Task.optimizer: {error}") from error
    for field, value in (("rate", task.rate), ("tau", task.tau)):
        if not 0 < value < inf:
            raise TaskError(f"Task.{field} is a positive number, got {value!r}")
    if task.steps < 1:
        raise TaskError(f"Task.steps is at least 1, got {task.steps!r}")


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
    if not gradient_D.any() and not problem.depends_on_parameters(flat_D, first):
        raise TaskError(
            "loss() does not depend on the parameters, so nothing is trained: something in it is detached (.detach(), .data, "
            "torch.no_grad(), .item(), or a tensor that is made anew)"
        )
    problem.gradient(flat_D, second)
    disturb()
    loss_again, again_D = problem.gradient(flat_D, first)
    if not torch.equal(gradient_D, again_D):
        where = _different_parameters(problem, gradient_D, again_D)
        part = "loss() and its backward pass" if loss != loss_again else "the backward pass of loss()"
        why = _kernel_to_blame(problem, flat_D, first, second, part) or "it keeps state or uses chance"
        raise TaskError(f"loss() gives another gradient for the same parameters and batch{where}: {why}")
    if not torch.equal(flat_D, parameters_before_D):
        raise TaskError("loss() changes the parameters in place")


def _different_parameters(problem: Problem, left_D: Tensor, right_D: Tensor) -> str:
    left, right = problem.layout.views(left_D), problem.layout.views(right_D)
    names = [name for name in left if not torch.equal(left[name], right[name])]
    return f" (of '{names[0]}'{f' and {len(names) - 1} more' if len(names) > 1 else ''})"


class _Plainer(NamedTuple):
    """A plainer way to compute the same gradient: if it repeats, the task does, and a kernel does not."""

    here: str
    there: str
    remedy: str
    problem: Problem
    around: AbstractContextManager[None]


def _plainer(problem: Problem) -> _Plainer | None:
    if problem.device.type != "cpu":
        here, on_cpu = problem.device.type, Problem(problem.task, one_by_one=True)
        return _Plainer(f"on {here}", "on the CPU", "compute on the CPU", on_cpu, nullcontext())
    if (count := torch.get_num_threads()) > 1:
        return _Plainer(f"with {count} threads", "with one", "compute with --threads 1", problem, threads(1))
    return None


def _kernel_to_blame(problem: Problem, flat_D: Tensor, first: Batch, second: Batch, part: str) -> str:
    """What to do about a kernel that does not repeat; empty if it is the task itself that does not."""
    named = _named_operation(problem, flat_D, first)
    plainer = _plainer(problem)
    if plainer is None:
        return f"it uses {named}, which PyTorch does not promise to repeat" if named else ""
    with plainer.around:
        if not _repeats(plainer.problem, flat_D, first, second):
            return ""
    blamed = f"{named} among them" if named else "PyTorch does not say which; a kernel that is not PyTorch's, perhaps"
    return (
        f"the task is pure, since {plainer.there} it repeats, but {plainer.here} a kernel in {part} does not ({blamed}). Use "
        f"another layer or function in its place, or {plainer.remedy}"
    )


def _repeats(problem: Problem, flat_D: Tensor, first: Batch, second: Batch) -> bool:
    """Whether gradients are the same bits, with other work and other states of generators in between."""
    flat_D = flat_D.to(problem.device)
    first, second = ({name: t.to(problem.device) for name, t in batch.items()} for batch in (first, second))
    _, before_D = problem.gradient(flat_D, first)
    for _ in range(_REPEATS):
        problem.gradient(flat_D, second)
        disturb()
        if not torch.equal(problem.gradient(flat_D, first)[1], before_D):
            return False
    return True


def _named_operation(problem: Problem, flat_D: Tensor, batch: Batch) -> str:
    """The operation of which PyTorch itself says that it may give other bits each time; on accelerators it is refused."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        problem.gradient(flat_D, batch)
    named = (operation_without_version(warning.message) for warning in told if isinstance(warning.message, Warning))
    return next((name for name in named if name is not None), "")


def _difference(left: Batch, right: Batch) -> str | None:
    """The first tensor in which two batches differ."""
    for name in [*left, *right]:
        if name not in left or name not in right or left[name].dtype != right[name].dtype:
            return name
        if not torch.equal(left[name], right[name]):
            return name
    return None
