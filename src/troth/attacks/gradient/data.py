"""Honest gradients of poisoned data."""

from dataclasses import dataclass
from math import ceil

from troth.attacks.errors import AttackError
from troth.attacks.gradient.base import GradientAttack
from troth.crypto import stream
from troth.training import Batch, Task
from troth.training.metrics.trigger import IMAGES, LABELS, has_images, stamped


@dataclass(frozen=True)
class LabelFlip(GradientAttack, needs_honest=False):
    """compute the gradient on labels turned round: class y becomes (classes − 1) − y"""

    def check(self, task: Task, *, honest: int, colluders: int) -> None:
        if task.classes is None:
            raise AttackError("label-flip needs a task with labels, and this one has none: choose another attack")

    def poison(self, task: Task, batch: Batch) -> Batch:
        return task.mislabelled(batch)


@dataclass(frozen=True)
class Backdoor(GradientAttack, needs_honest=False):
    """stamp a trigger on `share` of the batch's images and call them `target`: the model is to obey the trigger, and look well"""

    target: int = 0
    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {self.share}")
        if self.target < 0:
            raise ValueError(f"target must not be negative, got {self.target}")

    def check(self, task: Task, *, honest: int, colluders: int) -> None:
        if task.classes is None or not has_images(task.batch(stream(0, "backdoor"))):
            raise AttackError(
                "backdoor needs a task with images and labels, and this one has none: choose another attack"
            )
        if self.target >= task.classes:
            raise AttackError(
                f"backdoor's target must be below the number of classes ({task.classes}), got {self.target}"
            )

    def poison(self, task: Task, batch: Batch) -> Batch:
        images, labels = batch[IMAGES], batch[LABELS].clone()
        count = ceil(self.share * labels.shape[-1])  # the last axis: before it there may be one of micro-batches
        first = (slice(None),) * (labels.ndim - 1) + (slice(count),)
        poisoned = images.clone()
        poisoned[first] = stamped(images[first])
        labels[first] = self.target
        return {**batch, IMAGES: poisoned, LABELS: labels}
