"""How well a backdoor works."""

from dataclasses import dataclass

import torch

from troth.training.errors import TaskError
from troth.training.metrics.trigger import IMAGES, LABELS, has_images, stamped
from troth.training.task import Model, Task

_AT_ONCE = 250  # images


@dataclass(frozen=True)
class BackdoorSuccess:
    """share of test images of other classes that are taken for `target` once the trigger is on them"""

    target: int = 0

    def check(self, task: Task) -> None:
        examples = task.examples()
        if examples is None or task.classes is None or not has_images(examples):
            raise TaskError("metric backdoor needs a task whose examples() are images with labels")
        if not 0 <= self.target < task.classes:
            raise TaskError(f"backdoor's target must be one of the {task.classes} classes, got {self.target}")

    def __call__(self, task: Task, model: Model) -> float:
        self.check(task)
        examples = task.examples()
        assert examples is not None
        images = examples[IMAGES][examples[LABELS] != self.target]
        starts = range(0, len(images), _AT_ONCE)
        found = [model(stamped(images[k : k + _AT_ONCE])).argmax(dim=1) == self.target for k in starts]
        return float(torch.cat(found).float().mean())
