"""Metrics beside a task's own: by name, from a user's file, or from an installed package.

A metric is a function `metric(task, model) -> float`, or a dataclass with such a `__call__`; its other parameters, or its
fields, are its options. It is computed wherever the task evaluates itself, and stands beside the task's own under its spec.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from troth.plugins import Kind, find, made
from troth.specs import LazyTable, SpecError, convert_options
from troth.training.errors import TaskError
from troth.training.task import Model, Task
from troth.training.user_code import calling

Metric = Callable[[Task, Model], float]

METRICS = LazyTable[type]({"backdoor": "troth.training.metrics.backdoor:BackdoorSuccess"})
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


METRIC: Kind[Any] = Kind("metric", "a function of a task and a model, or a class with such a __call__", _is_metric)


def _kind(parameter: inspect.Parameter) -> Any:
    if parameter.annotation is not parameter.empty:
        return parameter.annotation
    return str if parameter.default in (None, parameter.empty) else type(parameter.default)
