"""A task out of a LightningModule's `training_step` and a dataset (extra `lightning`).

    from troth.training import lightning

    task = lightning.task(MyModule, data=dataset, batch_size=32)

`training_step(batch, batch_idx)` is called with a batch as `troth.training.dataset_task.task` makes it, always with index 0.
`self.log` does nothing. Optimizer and schedule are the run's: `configure_optimizers` is not asked.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from troth.training import dataset_task
from troth.training.task import Task, TaskError

_SILENCED = ("log", "log_dict", "print")


def task(module: Callable[[], nn.Module], *, data: Any, **options: Any) -> Task:
    """Make a task; `module` builds the LightningModule, options are those of `troth.training.dataset_task.task`."""
    return dataset_task.task(model=module, data=data, loss=_loss, **{"name": "lightning", **options})


def _loss(model: Any, batch: Any) -> Tensor:
    if not getattr(model, "automatic_optimization", True):
        raise TaskError(
            "a LightningModule that optimises by itself (automatic_optimization=False) cannot be trained together"
        )
    with _silenced(model):
        result = model.training_step(batch, 0)
    loss = result.get("loss") if isinstance(result, Mapping) else result
    if not isinstance(loss, Tensor):
        raise TaskError("training_step() returns no loss: return a tensor, or a dict with 'loss'")
    return loss


@contextmanager
def _silenced(model: Any) -> Iterator[None]:
    """Without a trainer, logging would warn at every step."""
    for name in _SILENCED:
        object.__setattr__(model, name, _nothing)
    try:
        yield
    finally:
        for name in _SILENCED:
            object.__delattr__(model, name)


def _nothing(*_: Any, **__: Any) -> None:
    pass
