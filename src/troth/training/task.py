"""A task, as a user writes it: a model, a batch from a public seed, a loss, and optionally metrics beside the loss.

A task is a pure function (parameters, seed) → gradient: anyone can recompute anyone's gradient, which catches liars. So
all randomness comes from the batch's seed: sampling and augmentation from the stream that `batch` is given, dropout and
noise in the loss by way of `training/random_answers.py`. `check_pure` finds tasks that break this and says where.

    @dataclass(frozen=True)
    class Lines(Task):
        '''fit a line'''
        def model(self):
            return nn.Linear(1, 1)
        def batch(self, draw):
            x = torch.from_numpy(draw.uniform(8)).float()[:, None]
            return {"x": x, "y": 3 * x + 1}
        def loss(self, model, batch):
            return F.mse_loss(model(batch["x"]), batch["y"])
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from troth.crypto import Stream, stream
from troth.errors import OperatorError


class TaskError(OperatorError):
    """A task that cannot be trained on together; the message says what in it to change."""


Batch = dict[str, Tensor]  # equal shapes for every seed, so that batches of many peers stack
Model = Callable[..., Any]  # called as the module would be; its parameters are those of the step


class Task(ABC):
    """Base class of tasks: subclass it as a frozen dataclass, whose fields are the task's options."""

    classes: ClassVar[int | None] = None  # with this set, `batch["labels"]` holds class indices (label-flip needs them)
    clip_norm: ClassVar[float | None] = None  # a gradient longer than this is scaled down to it
    one_by_one: ClassVar[bool] = False  # set it where the loss cannot go through `torch.func.vmap`
    accumulate: ClassVar[int] = 1  # a gradient is the mean over so many micro-batches, each drawn by `batch`
    autocast: ClassVar[str | None] = None  # "bfloat16": forward and backward passes in mixed precision
    tf32: ClassVar[bool] = False  # True: products of float32 may be rounded to TensorFloat-32 on GPUs that have it

    # Defaults that suit the task; the command line overrides them.
    steps: ClassVar[int] = 300
    optimizer: ClassVar[str] = "sgd"
    rate: ClassVar[float] = 0.1
    tau: ClassVar[float] = 1.0

    @abstractmethod
    def model(self) -> nn.Module:
        """Build the module, initialised as usual: its random numbers come from the run's stream, the same bits everywhere.

        Parameters with `requires_grad=False` are constants. BatchNorm uses batch statistics in training, calibrated ones in
        evaluation.
        """

    @abstractmethod
    def batch(self, draw: Stream) -> Batch:
        """The minibatch that follows from this stream and nothing else."""

    def batch_on(self, device: torch.device, draw: Stream) -> Batch:
        """The same batch, drawn where the device can do it faster: from data that a task keeps there, for instance.

        Numbers must be those of `batch`: draw them on the CPU, and only gather on the device.
        """
        return self.batch(draw)

    def shard(self, peer: int, peers: int, honest: Sequence[int]) -> "Task":
        """The task as this peer draws batches from it where every peer has data of its own; `honest` are those who do not lie.

        Only training with a trusted server asks: in the protocol everyone draws from public data, so that anyone can check.
        """
        return self

    @abstractmethod
    def loss(self, model: Model, batch: Batch) -> Tensor:
        """A scalar, without state; dropout and noise follow from the batch's seed. `model` has the module's attributes too."""

    def mislabelled(self, batch: Batch) -> Batch:
        """The batch with labels that are all wrong, for attackers: class y becomes (classes − 1) − y."""
        assert self.classes is not None, "a task without labels has none to turn round"
        return {**batch, "labels": self.classes - 1 - batch["labels"]}

    def data_files(self) -> Sequence[Path]:
        """The files that the task reads, always in the same order, if there are any; a run's manifest fixes their contents."""
        return ()

    def evaluate(self, model: Model) -> dict[str, float]:
        """Metrics of the model; by default the loss on 16 batches of a fixed seed."""
        losses = [self.loss(model, self.batch(stream(0, "evaluate", k))) for k in range(16)]
        return {"loss": float(torch.stack(losses).mean())}

    def examples(self) -> Batch | None:
        """Labelled test examples, all of them, for metrics beside the task's own; None where there are none."""
        return None

    def initialise(self, model: nn.Module, draw: Stream) -> None:  # noqa: B027 – most tasks need nothing here
        """Change the first parameters that `model` gave; every number drawn here, by `nn.init` too, is the run's."""


T = TypeVar("T", bound=Task)


def draw_batch(task: Task, device: torch.device, draw: Stream) -> Batch:
    """The task's batch: by `batch_on`, unless a class below the one that defines it has a `batch` of its own."""
    names = next(vars(cls).keys() for cls in type(task).__mro__ if {"batch", "batch_on"} & vars(cls).keys())
    return task.batch_on(device, draw) if "batch_on" in names else task.batch(draw)


def with_options(task: T, **options: Any) -> T:
    """A copy of a task with other values; tasks are frozen, and options that all tasks have are no fields."""
    other = copy(task)
    for name, value in options.items():
        object.__setattr__(other, name, value)
    return other


def check_counts(task: Task) -> None:
    """Raise unless every whole number among a task's fields can be a size."""
    for name, value in vars(task).items():
        if type(value) is int and not 1 <= value <= 65536:
            raise ValueError(f"{name} must be at least 1 and at most 65536, got {value}")


def check_choices(task: Task, **known: Iterable[str]) -> None:
    """Raise unless each of these fields has one of the values that are known for it."""
    for name, values in known.items():
        if (value := getattr(task, name)) not in values:
            raise ValueError(f"{name} is one of {', '.join(values)}, got '{value}'")
