"""A task out of a model, a dataset and a loss, without a class of one's own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from troth.crypto import Stream
from troth.specs import check_keywords
from troth.training.task import Batch, Model, Task, TaskError, with_options

_ITEM, _LABELS = "item", "labels"  # names of tensors that an item of the dataset gives no names to


@check_keywords
def task(
    *,
    model: Callable[[], nn.Module],
    data: Any,
    loss: Callable[[Any, Any], Tensor],
    batch_size: int = 8,
    evaluate: Callable[[Any], dict[str, float]] | Any = None,
    steps: int = Task.steps,
    optimizer: str = Task.optimizer,
    rate: float = Task.rate,
    tau: float = Task.tau,
    classes: int | None = None,
    data_files: Sequence[str | Path] = (),
    name: str = "task",
    accumulate: int = 1,
    autocast: str | None = None,
    tf32: bool = False,
    one_by_one: bool = False,
    clip_norm: float | None = None,
) -> Task:
    """Make a task: `model` builds the module, `data` has `len` and items, `loss(model, batch)` gets a batch of items.

    An item is a tensor, a tuple such as `(x, y)`, or a dict of them; numbers and lists of numbers count as tensors. A batch
    has the form of an item, with one more axis in front. Rows are drawn from the seed, with replacement. `evaluate` is a
    function of the model that returns metrics, or a held-out dataset, of which the mean loss is taken.
    """
    return with_options(
        DatasetTask(model, data, loss, batch_size, evaluate, tuple(Path(file) for file in data_files), name),
        steps=steps,
        optimizer=optimizer,
        rate=rate,
        tau=tau,
        classes=classes,
        accumulate=accumulate,
        autocast=autocast,
        tf32=tf32,
        one_by_one=one_by_one,
        clip_norm=clip_norm,
    )


@dataclass(frozen=True, eq=False, repr=False)
class DatasetTask(Task):
    """a model of one's own on a dataset"""

    build: Callable[[], nn.Module]
    data: Any
    objective: Callable[[Any, Any], Tensor]
    batch_size: int
    metrics: Callable[[Any], dict[str, float]] | Any
    files: tuple[Path, ...]
    name: str

    def __post_init__(self) -> None:
        if not callable(self.build) or isinstance(self.build, nn.Module):
            raise TaskError("`model` is a function that builds the module (a class will do), not a module")
        if not hasattr(self.data, "__len__") or not hasattr(self.data, "__getitem__"):
            raise TaskError("`data` needs a length and items by number: a list, or a map-style dataset of PyTorch's")
        for name, items in (("data", self.data), ("evaluate", self.metrics)):
            if hasattr(items, "__len__") and len(items) == 0:
                raise TaskError(f"`{name}` is empty")
        if not isinstance(self.batch_size, int) or not 1 <= self.batch_size <= 65536:
            raise TaskError(f"`batch_size` must be at least 1 and at most 65536, got {self.batch_size}")

    def __repr__(self) -> str:
        return f"{self.name}(items={len(self.data)}, batch_size={self.batch_size})"

    def model(self) -> nn.Module:
        return self.build()

    def batch(self, draw: Stream) -> Batch:
        return self._rows(draw.integers(len(self.data), self.batch_size).tolist(), self.data)

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return self.objective(model, self._like_an_item(batch))

    def data_files(self) -> Sequence[Path]:
        return self.files

    def evaluate(self, model: Model) -> dict[str, float]:
        if self.metrics is None:
            return super().evaluate(model)
        if not hasattr(self.metrics, "__getitem__"):
            return dict(self.metrics(model))
        held_out: Any = self.metrics
        total = 0.0
        for rows in self._in_order(len(held_out)):
            total += float(self.loss(model, self._rows(rows, held_out))) * len(rows)
        return {"loss": total / len(held_out)}

    def _in_order(self, count: int) -> Iterator[list[int]]:
        for start in range(0, count, self.batch_size):
            yield list(range(start, min(start + self.batch_size, count)))

    def _rows(self, rows: Sequence[int], data: Any) -> Batch:
        items = [self._named(data[row]) for row in rows]
        try:
            return {name: torch.stack([item[name] for item in items]) for name in items[0]}
        except (KeyError, RuntimeError) as error:
            raise TaskError(f"items of the dataset do not fit together: {error}; pad them to one shape") from error

    def _named(self, item: Any) -> Batch:
        if isinstance(item, Mapping):
            return {str(name): _tensor(value, str(name)) for name, value in item.items()}
        if isinstance(item, tuple | list):
            return {name: _tensor(value, name) for name, value in zip(self._names(len(item)), item, strict=True)}
        return {_ITEM: _tensor(item, _ITEM)}

    def _names(self, count: int) -> list[str]:
        names = [f"{_ITEM}{k}" for k in range(count)]
        return [*names[:-1], _LABELS] if self.classes is not None else names

    @cached_property
    def _form(self) -> type:
        item = self.data[0]
        return dict if isinstance(item, Mapping) else tuple if isinstance(item, tuple | list) else Tensor

    def _like_an_item(self, batch: Batch) -> Any:
        if self._form is dict:
            return batch
        return tuple(batch.values()) if self._form is tuple else batch[_ITEM]


def _tensor(value: Any, name: str) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TaskError(
            f"'{name}' of an item of the dataset is no tensor ({error}): convert it in the dataset"
        ) from error
