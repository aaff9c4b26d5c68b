"""The built-in tasks, and how one in a user's own file or in an installed package is found."""

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from troth.plugins import PinnedCode, find, made, subclass_of
from troth.specs import LazyTable, convert_options, file_of
from troth.training import determinism
from troth.training.task import Task, TaskError, with_options

TASKS = LazyTable[type[Task]](
    {
        "digits": "troth.training.tasks.small_images:Digits",
        "digits-cnn": "troth.training.tasks.small_images:DigitsCNN",
        "quadratic": "troth.training.tasks.synthetic:Quadratic",
        "factors": "troth.training.tasks.synthetic:Factors",
        "non-convex": "troth.training.tasks.synthetic:NonConvex",
        "convex": "troth.training.tasks.synthetic:Convex",
        "strongly-convex": "troth.training.tasks.synthetic:StronglyConvex",
        "cnn": "troth.training.tasks.small_images:CNN",
        "mnist-cnn": "troth.training.tasks.small_images:MnistCNN",
        "resnet18": "troth.training.tasks.resnet:ResNet18",
        "resnet20": "troth.training.tasks.resnet:ResNet20",
        "char-transformer": "troth.training.tasks.text:CharTransformer",
        "albert": "troth.training.tasks.text:Albert",
    }
)
COMMON_OPTIONS: dict[str, Any] = {  # of every task, with their types
    "autocast": str | None,
    "clip_norm": float | None,
    "tf32": bool,
}
# In a spec `{data}` is the folder that the environment names: the spec is the same anywhere.
DATA, DATA_VARIABLE = "{data}", "TROTH_DATA"
TASK_PLUGINS = "troth.tasks"  # entry points of installed packages
TASK = subclass_of(Task, "task", "a complete subclass of troth.training.Task, or an object of one")

_read_at_load: dict[Path, determinism.Reads] = {}  # by the task's file


def make_task(spec: str, folder: Path | None = None, code: PinnedCode | None = None) -> Task:
    """`digits`, `quadratic:dimension=100`, `my_task.py`, `my_task.py:Name:option=value`, or the name of a package's task.

    A file is looked for in `folder`; without one, from where the command runs. It is run, so it must be the user's own. A
    manifest's is given as `code`, after it was compared with what was agreed on, and a person agreed to run it
    (`Manifest.make_task`). Every task takes the options of `COMMON_OPTIONS` too. In an option `{data}` stands for the folder
    that TROTH_DATA names; never in the name of a file, which would then be another one than was looked at.
    """
    with determinism.recording() as reads:  # a file may read its data while it is loaded
        thing, options = find(spec, TASK, TASKS, TASK_PLUGINS, folder, code)
        options = {name: _placed(value, spec) for name, value in options.items()}
        common = {name: options.pop(name) for name in COMMON_OPTIONS if name in options and name not in _fields(thing)}
        task = with_options(made(thing, options, spec), **convert_options(common, COMMON_OPTIONS, spec))
    if (file := file_of(spec)) is not None:
        # Once in a process: a second task out of the same file has read as much.
        place = ((folder or Path()) / file).resolve()
        reads = _read_at_load[place] = _read_at_load.get(place, {}) | reads
    determinism.remember(task, reads)
    return task if folder is None else _with_data_in(task, folder)


@contextmanager
def data_folder(folder: str | None) -> Iterator[None]:
    """Let `{data}` stand for this folder in specs of tasks that are made inside."""
    before = os.environ.get(DATA_VARIABLE)
    if folder is not None:
        os.environ[DATA_VARIABLE] = folder
    try:
        yield
    finally:
        if folder is not None:
            os.environ.pop(DATA_VARIABLE)
            os.environ.update({} if before is None else {DATA_VARIABLE: before})


def _placed(value: str, spec: str) -> str:
    if DATA not in value:
        return value
    if not (folder := os.environ.get(DATA_VARIABLE)):
        raise TaskError(f"'{spec}' reads data from a folder that {DATA_VARIABLE} in the environment is to name")
    return value.replace(DATA, folder)


def _fields(thing: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(thing)} if dataclasses.is_dataclass(thing) else set()


def _with_data_in(task: Task, folder: Path) -> Task:
    """A built-in task whose data is looked for from this folder on: that of a manifest, wherever a member's process runs."""
    data, built_in = getattr(task, "data", None), type(task).__module__.startswith(f"{__name__}.")
    if not built_in or not isinstance(data, Path):
        return task
    return with_options(task, data=folder / data)
