"""The built-in tasks, and how one in a user's own file is found."""

import inspect
import runpy
from pathlib import Path

from troth.specs import SpecError, build, parse_spec, pick
from troth.training import file_reads
from troth.training.task import Task
from troth.training.tasks.digits import Digits, DigitsCNN
from troth.training.tasks.factors import Factors
from troth.training.tasks.quadratic import Quadratic

TASKS: dict[str, type[Task]] = {
    "digits": Digits,
    "digits-cnn": DigitsCNN,
    "quadratic": Quadratic,
    "factors": Factors,
}


def make_task(spec: str, folder: Path | None = None) -> Task:
    """`digits`, `quadratic:dimension=100`, or `my_task.py:option=value` with one Task subclass in that file.

    A file is looked for in `folder`; without one, from where the command runs.
    """
    name, options = parse_spec(spec)
    with file_reads.recording() as reads:  # a file may read its data while it is loaded
        kind = _from_file((folder or Path()) / name) if name.endswith(".py") else pick(TASKS, name, "task")
        task = build(kind, options, spec)
    file_reads.remember(task, reads)
    return task


def _from_file(path: Path) -> type[Task]:
    """Runs the user's own file, as importing it would; never a file that came from a peer."""
    if not path.is_file():
        raise SpecError(f"no task file at '{path}'")
    own = {
        value
        for value in runpy.run_path(str(path)).values()
        if isinstance(value, type)
        and issubclass(value, Task)
        and not inspect.isabstract(value)
        and value.__module__ == "<run_path>"
    }
    if len(own) != 1:
        raise SpecError(f"'{path}' defines {len(own)} tasks, expected one complete subclass of troth.training.Task")
    return own.pop()
