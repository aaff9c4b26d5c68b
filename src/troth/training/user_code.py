"""Calls of a task's own code: its errors as one line that names the method, the file and the line; and calls that end early."""

import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from troth.errors import OperatorError
from troth.training.task import TaskError

_MOST_SAID = 100  # characters of what PyTorch says
_OURS = str(Path(__file__).parent)
_BUILT_IN = str(Path(__file__).parent / "tasks")
_FOLDERS = [
    *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *site.getsitepackages(),
    str(Path(torch.__file__).parents[1]),
    os.path.join(sys.base_prefix, "lib"),
]
_is_unwanted: ContextVar[Callable[[], bool]] = ContextVar("unwanted", default=lambda: False)
LIBRARIES = tuple({os.path.join(path, "") for folder in _FOLDERS for path in (folder, os.path.realpath(folder))})


@contextmanager
def calling(method: str) -> Iterator[None]:
    """Turn an exception out of a task's method into a `TaskError`; TROTH_TRACEBACK=1 leaves it as it is."""
    try:
        yield
    except OperatorError:
        raise
    except Exception as error:
        if os.environ.get("TROTH_TRACEBACK"):
            raise
        told = str(error).strip().splitlines()
        raise TaskError(
            f"{method}() fails{place_of(error)}: {type(error).__name__}{': ' + told[0] if told else ''} "
            "(with TROTH_TRACEBACK=1 in the environment the whole traceback is shown)"
        ) from error


class UnwantedError(OperatorError):
    """Nobody wants the result any more."""


@contextmanager
def unless(unwanted: Callable[[], bool]) -> Iterator[None]:
    """Compute what is inside while somebody wants it; as soon as nobody does, the next `check_wanted` raises `UnwantedError`."""
    token = _is_unwanted.set(unwanted)
    try:
        yield
    finally:
        _is_unwanted.reset(token)


def check_wanted() -> None:
    """Called between the operations of a gradient."""
    if _is_unwanted.get()():
        raise UnwantedError("this gradient is not wanted any more")


def is_users(file: str) -> bool:
    """Whether a source file is the user's own, or a built-in task: neither a library's nor ours."""
    if file.startswith("<") or file.startswith(LIBRARIES):
        return False
    return file.startswith(_BUILT_IN) or not file.startswith(_OURS)


def place_of(error: Exception) -> str:
    """` at file:line` of the user's own line in an error's traceback, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_users(frame.filename)]
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""


def one_number(loss: Any) -> Tensor:
    """What `loss()` returned, if it is a loss."""
    must = "loss() must return one number as a tensor"
    if loss is None:
        raise TaskError(f"{must}, and returns nothing: is a return missing?")
    if isinstance(loss, tuple | list | dict):
        raise TaskError(f"{must}, and returns a {type(loss).__name__}: return the loss alone")
    if not isinstance(loss, Tensor):
        raise TaskError(
            f"{must}, and returns a {type(loss).__name__}: leave out .item() or float(), which end the gradient"
        )
    if loss.numel() != 1:
        raise TaskError(f"{must}, and returns shape {tuple(loss.shape)}: take the mean over the batch")
    return loss.reshape(())


def why_not_batched(said: str) -> str:
    """What `vmap` says against a loss, in a few words."""
    if "control flow" in said:
        return "vmap: the loss calls .item(), or has control flow that depends on a tensor"
    first = said.strip().partition("\n")[0].removeprefix("vmap: ")
    return f"vmap: {first if len(first) <= _MOST_SAID else first[: _MOST_SAID - 1] + '…'}"
