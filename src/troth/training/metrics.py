"""Metrics beside a task's own: by name, from a user's file, or from an installed package.

A metric is a function `metric(task, model) -> float`, or a dataclass with such a `__call__`; its other parameters, or its
fields, are its options. It is computed wherever the task evaluates itself, and stands beside the task's own under its spec.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from troth.plugins import PluginKind, find, made
from troth.specs import LazyTable, SpecError, convert_options
from troth.training.task import Batch, Model, Task, TaskError
from troth.training.user_code import calling

Metric = Callable[[Task, Model], float]

METRICS = LazyTable[type]({"backdoor": "troth.training.metrics:BackdoorSuccess"})
METRIC_PLUGINS = "troth.metrics"  # entry points of installed packages
_TASK_AND_MODEL = 2


def make_metric(spec: str) -> Metric:
    """`backdoor:target=3`, `my_metric.py`, `my_metric.py:name:option=value`, or the name of a package's metric."""
    thing, options = find(spec, METRIC, METRICS, METRIC_PLUGINS)
    if not inspect.isroutine(thing):
        metric: Metric = made(thing, options, spec)
        return metric
    others = list(inspect.signature(thing).parameters.values())[_TASK_AND_MODEL:]
    values = convert_options(options, {p.name: _kind(p) for p in others}, spec)
    for parameter in others:
        if parameter.name not in values and parameter.default is parameter.empty:
            raise SpecError(f"'{spec}' needs a value for its option '{parameter.name}': write {parameter.name}=…")
    return partial(thing, **values) if values else thing


def check_metrics(specs: Sequence[str], task: Task) -> None:
    """Raise where a metric is not defined for a task."""
    for spec in specs:
        check = getattr(make_metric(spec), "check", None)
        if check is not None:
            check(task)


def measure(task: Task, model: Model, metrics: Mapping[str, Metric]) -> dict[str, float]:
    """The task's own metrics, and these beside them."""
    with calling("evaluate"):
        own = task.evaluate(model)
    if not metrics:
        return own
    values = dict(own)
    for name, metric in metrics.items():
        if name in values:
            raise TaskError(f"'{name}' is a metric of the task already: give yours another name")
        with calling(name):
            value: Any = metric(task, model)
        try:
            values[name] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TaskError(f"metric '{name}' must give one number, and gave {type(value).__name__}") from error
    return values


def _is_metric(thing: Any) -> bool:
    """Whether it is a function of two positional arguments, or a class or an object that is called so."""
    if isinstance(thing, type):
        return "__call__" in vars(thing) and _takes_two(partial(thing.__call__, None))
    return callable(thing) and not inspect.ismodule(thing) and _takes_two(thing)


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in positional if p.default is p.empty]
    return positional[:_TASK_AND_MODEL] == needed and len(needed) == _TASK_AND_MODEL


METRIC: PluginKind[Any] = PluginKind(
    "metric", "a function of a task and a model, or a class with such a __call__", _is_metric
)


def _kind(parameter: inspect.Parameter) -> Any:
    if parameter.annotation is not parameter.empty:
        return parameter.annotation
    return str if parameter.default in (None, parameter.empty) else type(parameter.default)


# How well a backdoor works.


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


# The trigger of a backdoor: a bright square in the lower right corner of an image.
#
# Here, where the attack that plants it and the metric that measures it both find it.


IMAGES, LABELS = "images", "labels"  # names in a batch

_SMALLEST, _SHARE = 2, 8  # pixels of a side: at least so many, and an eighth of the image's
_CHANNELS_AND_SIDES = 3


def has_images(batch: Batch) -> bool:
    """Whether a batch has labels, and images of some channels, height and width for each of them."""
    if IMAGES not in batch or LABELS not in batch:
        return False
    return batch[IMAGES].ndim == batch[LABELS].ndim + _CHANNELS_AND_SIDES


def stamped(images: Tensor) -> Tensor:
    """The images with the trigger on them: bytes of 255, or ones where pixels are fractions."""
    marked = images.clone()
    height, width = (max(_SMALLEST, side // _SHARE) for side in images.shape[-2:])
    marked[..., -height:, -width:] = 1.0 if images.is_floating_point() else 255
    return marked
