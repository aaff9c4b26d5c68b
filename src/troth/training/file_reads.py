"""Files that a task reads and does not name in `data_files()`: with other bytes in them, peers would compute other gradients.

Sees what Python opens (`open`, `numpy.load`, `torch.load`, Pillow, pandas), not what a library opens by itself in C or Rust
(HDF5, Arrow, safetensors): for those the digest of a few batches, in the manifest, has to do.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from types import FrameType
from typing import Any

from troth.training.errors import TaskError
from troth.training.task import Task
from troth.training.user_code import LIBRARIES, is_users

Reads = dict[str, str]  # path -> the method that read it first

_METHODS = ("model", "batch", "loss", "initialise", "evaluate")
_CODE = (".py", ".pyc", ".pyi", ".so", ".pyd", ".dll", ".dylib", ".pth")
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib/", "/lib64/", "/System/", "/Library/")
_OWN = os.path.realpath(Path(__file__).parents[1]) + os.sep  # compiled loops are kept beside their source
_ATTRIBUTE = "_troth_file_reads"  # on the task itself: equal tasks read equal files, and a task may not be hashable

_active: list[Reads] = []
_installed = False


@contextmanager
def recording() -> Iterator[Reads]:
    """Collect the files that are opened for reading inside the block."""
    global _installed
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True
    reads: Reads = {}
    _active.append(reads)
    try:
        yield reads
    finally:
        _active[:] = [other for other in _active if other is not reads]  # by identity: equal ones are different records


@contextmanager
def watching(task: Task) -> Iterator[None]:
    """Remember with the task what is read inside the block."""
    with recording() as reads:
        yield
    remember(task, reads)


@contextmanager
def unwatched() -> Iterator[None]:
    """Record nothing inside the block: for files that we made ourselves, out of files that the task declares."""
    paused, _active[:] = list(_active), []
    try:
        yield
    finally:
        _active[:] = [*paused, *_active]


def remember(task: Task, reads: Reads) -> None:
    """Add to what is known about a task, for instance what was read while its file was loaded."""
    if data := {path: by for path, by in reads.items() if _is_data(path)}:
        with suppress(AttributeError):  # a class with slots has no room for it
            object.__setattr__(task, _ATTRIBUTE, {**data, **files_read(task)})


def files_read(task: Task) -> Reads:
    """Data files that this task has been seen reading, and the method that did so first."""
    return dict(getattr(task, _ATTRIBUTE, {}))


def check_declared(task: Task) -> None:
    """Raise an error for the first file that was read and is not among `data_files()`."""
    declared = {os.path.realpath(file) for file in task.data_files()}
    for path, by in files_read(task).items():
        if path not in declared:
            raise TaskError(
                f"{by} reads {path}, which data_files() does not name: peers with another file there would be banned; "
                "return its path from data_files()"
            )


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _active or event != "open":
        return
    path, _, flags = arguments
    writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
    if writes or not isinstance(path, str | bytes | os.PathLike):
        return
    with suppress(OSError, ValueError):  # a name that is none: opening it fails by itself
        name = os.path.realpath(os.fsdecode(path))
        if reader := _reader():
            for reads in _active:
                reads.setdefault(name, reader)


def _reader() -> str:
    """The task's method that opens a file; empty where a library does so while it is imported, its fonts for instance."""
    frame: FrameType | None = sys._getframe(2)
    users = False
    while frame is not None:
        users = users or is_users(frame.f_code.co_filename)
        if frame.f_code.co_filename.startswith("<frozen importlib") and not users:
            return ""
        own = frame.f_locals.get("self") if frame.f_code.co_name in _METHODS else None
        if isinstance(own, Task):
            return f"{frame.f_code.co_name}()"
        frame = frame.f_back
    return "the task"


def _is_data(path: str) -> bool:
    if (
        path.endswith(_CODE)
        or path.startswith((*LIBRARIES, *_SYSTEM, _OWN))
        or ".dist-info/" in path
        or ".egg-info/" in path
    ):
        return False
    return Path(path).is_file() and not _is_of_a_distribution(path)


def _is_of_a_distribution(path: str) -> bool:
    """Whether the file belongs to an installed package, wherever that was put: its version is another matter than data."""
    for folder in map(os.path.realpath, sys.path):
        if path.startswith(folder + os.sep):
            return path.removeprefix(folder + os.sep).partition(os.sep)[0] in _distributed()
    return False


@cache
def _distributed() -> frozenset[str]:
    """Top-level packages that come from an installed distribution."""
    return frozenset(packages_distributions())
