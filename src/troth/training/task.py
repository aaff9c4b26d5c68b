"""A task, as a user writes it: a model, a batch from a public seed, a loss, and optionally metrics beside the loss.

A task is a pure function (parameters, seed) → gradient: anyone can recompute anyone's gradient, which catches liars. So
all randomness comes from the stream that `batch` is given: sampling, augmentation, and dropout too, whose masks are drawn
in `batch` and travel in it. `check_pure` finds tasks that break this and says where.

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from troth.crypto import Stream, stream
from troth.training.initialise import initialise_uniform

Batch = dict[str, Tensor]  # equal shapes for every seed, so that batches of many peers stack
Model = Callable[..., Any]  # called as the module would be; its parameters are those of the step


class Task(ABC):
    """Base class of tasks: subclass it as a frozen dataclass, whose fields are the task's options."""

    classes: ClassVar[int | None] = None  # with this set, `batch["labels"]` holds class indices (label-flip needs them)
    one_by_one: ClassVar[bool] = False  # set it where the loss cannot go through `torch.func.vmap`

    # Defaults that suit the task; the command line overrides them.
    steps: ClassVar[int] = 300
    optimizer: ClassVar[str] = "sgd"
    rate: ClassVar[float] = 0.1
    tau: ClassVar[float] = 1.0

    @abstractmethod
    def model(self) -> nn.Module:
        """Build the module. BatchNorm uses batch statistics in training, calibrated ones in evaluation."""

    @abstractmethod
    def batch(self, draw: Stream) -> Batch:
        """The minibatch that follows from this stream and nothing else."""

    @abstractmethod
    def loss(self, model: Model, batch: Batch) -> Tensor:
        """A scalar, without randomness or state: everything that varies belongs in the batch."""

    def data_files(self) -> Sequence[Path]:
        """The files that `batch` reads, always in the same order, if there are any; a run's manifest fixes their contents."""
        return ()

    def evaluate(self, model: Model) -> dict[str, float]:
        """Metrics of the model; by default the loss on 16 batches of a fixed seed."""
        losses = [self.loss(model, self.batch(stream(0, "evaluate", k))) for k in range(16)]
        return {"loss": float(torch.stack(losses).mean())}

    def initialise(self, model: nn.Module, draw: Stream) -> None:
        """Set the first parameters, the same bits on every machine. Override for layers with rules of their own."""
        initialise_uniform(model, draw)
