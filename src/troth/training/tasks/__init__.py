"""The built-in tasks, and how one in a user's own file or in an installed package is found."""

import dataclasses
from pathlib import Path
from typing import Any

from troth.plugins import load, subclass_of
from troth.specs import file_of
from troth.training import file_reads
from troth.training.task import Task
from troth.training.tasks.albert import Albert
from troth.training.tasks.char_transformer import CharTransformer
from troth.training.tasks.cnn import CNN
from troth.training.tasks.digits import Digits, DigitsCNN
from troth.training.tasks.factors import Factors
from troth.training.tasks.quadratic import Quadratic
from troth.training.tasks.resnet18 import ResNet18

TASKS: dict[str, type[Task]] = {
    "digits": Digits,
    "digits-cnn": DigitsCNN,
    "quadratic": Quadratic,
    "factors": Factors,
    "cnn": CNN,
    "resnet18": ResNet18,
    "char-transformer": CharTransformer,
    "albert": Albert,
}
TASK_PLUGINS = "troth.tasks"  # entry points of installed packages
TASK = subclass_of(Task, "task", "a complete subclass of troth.training.Task, or an object of one")

_read_at_load: dict[Path, file_reads.Reads] = {}  # by the task's file


def make_task(spec: str, folder: Path | None = None) -> Task:
    """`digits`, `quadratic:dimension=100`, `my_task.py`, `my_task.py:Name:option=value`, or the name of a package's task.

    A file is looked for in `folder`; without one, from where the command runs. It is run, so it must be the user's own, or
    byte for byte the one that a manifest's members agreed on; never a file that came from a peer.
    """
    with file_reads.recording() as reads:  # a file may read its data while it is loaded
        task = load(spec, TASK, TASKS, TASK_PLUGINS, folder)
    if (file := file_of(spec)) is not None:
        # Once in a process: a second task out of the same file has read as much.
        place = ((folder or Path()) / file).resolve()
        reads = _read_at_load[place] = _read_at_load.get(place, {}) | reads
    file_reads.remember(task, reads)
    return task if folder is None else _with_data_in(task, folder)


def _with_data_in(task: Task, folder: Path) -> Task:
    """A built-in task whose data is looked for from this folder on: that of a manifest, wherever a member's process runs."""
    data, kind = getattr(task, "data", None), type(task)
    if kind not in TASKS.values() or not isinstance(data, Path):
        return task
    made: Any = task
    placed: Task = dataclasses.replace(made, data=folder / data)
    return placed
