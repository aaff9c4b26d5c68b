"""A check that a task is a pure function of (parameters, seed): if it is not, honest peers accuse each other."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from troth.crypto import derive
from troth.training.errors import TaskError
from troth.training.layout import Layout
from troth.training.problem import Problem
from troth.training.task import Batch, Task


def check_pure(task: Task, problem: Problem | None = None) -> None:
    """Raise `TaskError`, saying what to change, unless the task gives the same bits for the same seed.

    A batch and a gradient are recomputed after disturbing every global generator and after another seed's gradient, so
    that hidden randomness and hidden state both show.
    """
    if Layout.of(task.model()) != Layout.of(task.model()):
        raise TaskError("model() builds a different module every time: its layers must not depend on chance")
    problem = problem or Problem(task)
    flat_D = problem.initial(0)
    _disturb_global_randomness()
    if not torch.equal(flat_D, problem.initial(0)):
        raise TaskError("initialise() leaves some parameters to chance: fill all of them from its stream")
    seed, other = derive(0, "purity", 0), derive(0, "purity", 1)

    with _watching_global_randomness("batch()", "draw from the stream that batch() is given"):
        first, second = problem.batch(seed), problem.batch(other)
    _disturb_global_randomness()
    if not _same(first, problem.batch(seed)):
        raise TaskError("batch() gives another batch for the same seed: draw everything from its stream")
    if _same(first, second):
        raise TaskError("batch() ignores its seed: every peer would compute the same gradient")

    kept = {name: tensor.clone() for name, tensor in first.items()}
    buffers = {name: buffer.clone() for name, buffer in problem.buffers().items()}
    parameters_before_D = flat_D.clone()
    with _watching_global_randomness("loss()", "draw dropout masks and noise in batch() and pass them in the batch"):
        loss, gradient_D = problem.gradient(flat_D, first)
    if not _same(first, kept):
        raise TaskError("loss() changes its batch in place: work on a copy")
    for name, now in problem.buffers().items():
        if not torch.equal(now, buffers[name]):
            raise TaskError(f"the model changes its buffer '{name}' in training: a step would depend on those before")
    if not (np.isfinite(loss) and bool(torch.isfinite(gradient_D).all())):
        raise TaskError("loss() or its gradient is not finite at the first parameters")
    problem.gradient(flat_D, second)
    _disturb_global_randomness()
    _, again_D = problem.gradient(flat_D, first)
    if not torch.equal(gradient_D, again_D):
        raise TaskError(
            "loss() gives another gradient for the same parameters and batch: it keeps state or uses chance"
        )
    if not torch.equal(flat_D, parameters_before_D):
        raise TaskError("loss() changes the parameters in place")


def _same(left: Batch, right: Batch) -> bool:
    return left.keys() == right.keys() and all(_equal_bits(left[name], right[name]) for name in left)


def _equal_bits(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(left, right)


def _disturb_global_randomness() -> None:
    random.random()
    np.random.random()
    torch.rand(())


@contextmanager
def _watching_global_randomness(where: str, remedy: str) -> Iterator[None]:
    before = _global_states()
    yield
    for name, old, new in zip(("torch", "numpy.random", "random"), before, _global_states(), strict=True):
        if old != new:
            raise TaskError(f"{where} uses the global generator of {name}: {remedy}")


def _global_states() -> tuple[bytes, bytes, str]:
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    return (
        torch.get_rng_state().numpy().tobytes(),
        numpy_state["state"]["key"].tobytes() + str(numpy_state["state"]["pos"]).encode(),
        str(random.getstate()),
    )
