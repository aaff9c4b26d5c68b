"""Repeatable gradients: the settings of PyTorch under which equal inputs give equal bits on one machine.

An accelerator left as it comes picks the fastest kernel of the day, adds in the order in which threads arrive, and
rounds to TensorFloat-32 behind the user's back. Troth holds these settings around every gradient and gives them back
afterwards, since a notebook has other work to do in the same process:

* algorithms that repeat (`torch.use_deterministic_algorithms`); on a CPU too, where the gradient of an index is otherwise
  added up by all threads at once. Memory is not filled beforehand: a gradient that reads it uninitialised is not pure;
* cuDNN repeats, and is chosen by shape, not by a race of kernels (`benchmark`);
* float32 is float32: TensorFloat-32 where the task asks for it (`Task.tf32`), bfloat16 in its place nowhere;
* sums of 16-bit products are not rounded to 16 bits between blocks;
* attention without cuDNN's kernels, whose backward pass adds in any order. Flash and memory-efficient kernels obey the
  first setting, and the plain formula repeats anyway;
* rows of a table by an index: PyTorch's gradient of an embedding has a race on CUDA (`training/random_answers.py`);
* `CUBLAS_WORKSPACE_CONFIG`, which cuBLAS reads once, from the environment, before its first product. It is set when this
  module is imported.

PyTorch keeps these settings for the process, not for a thread, so threads that want the same share them, and threads that
want something else wait (`_Held`).
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import torch
from torch import _C

from troth.training.task import Task, TaskError
from troth.training.user_code import LIBRARIES, is_users, place_of

_WORKSPACE_NAME, _WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
# Streams of a GPU share as many queues as this says, eight if nothing does; in one queue the first to wait holds up the others.
_QUEUES_NAME = "CUDA_DEVICE_MAX_CONNECTIONS"
_SHARING_NAME, _SHARING_FOLDER = "CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"  # of CUDA's multi-process service
_NO_VERSION = " does not have a deterministic implementation"
_INHERITED, _IEEE = "none", "ieee"  # PyTorch's names for the precision of float32
_WARN, _ERROR = 1, 2  # of PyTorch's deterministic debug mode


class NotRepeatableError(TaskError):
    """PyTorch has no version of an operation that gives the same bits every time."""

    def __init__(self, operation: str, device: str, place: str) -> None:
        self.operation = operation
        super().__init__(
            f"loss() or its backward pass{place} needs {operation}, of which PyTorch has no deterministic version on {device}; "
            "but others must get the same bits when they recompute the gradient: use another layer or function in its place, "
            "or compute on the CPU"
        )


class ProcessSetting(NamedTuple):
    """One setting of the process: how to read and write it, and its value while a gradient is computed."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], None]
    wanted: Any
    give_back: Callable[[Any], None] | None = None  # where it is not just `put`


class repeatable:  # noqa: N801 – used as a function; a class, since it stands around every gradient and must be light
    """Compute what is inside with settings that repeat; they are as before afterwards, whatever happens."""

    def __init__(self, device: torch.device, *, tf32: bool = False) -> None:
        self._kind, self._tf32 = device.type, tf32

    def __enter__(self) -> None:
        _HELD.take(self._kind, self._tf32)

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        _HELD.release()
        if isinstance(error, RuntimeError) and (operation := operation_without_version(error)) is not None:
            raise NotRepeatableError(operation, self._kind, place_of(error)) from error


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute what is inside with so many threads of PyTorch's, on which the bits of a sum may depend."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def operation_without_version(error: BaseException) -> str | None:
    """The operation that PyTorch names when it refuses to compute without repeating, if this is such an error."""
    told = str(error)
    if _NO_VERSION in told:
        return f"'{told.split(_NO_VERSION)[0].splitlines()[-1].strip()}'"
    return None


def check_environment(device: torch.device) -> None:
    """Raise an error unless cuBLAS was told to repeat before it could do anything."""
    if device.type != "cuda":
        return
    found = os.environ.get(_WORKSPACE_NAME)
    if found != _WORKSPACE:
        raise TaskError(
            f"{_WORKSPACE_NAME} is {found!r} in the environment, and gradients on CUDA repeat, and are those of other peers, "
            f"only with {_WORKSPACE!r}: unset it, or set it so, before Python starts"
        )
    if _TOO_LATE:
        raise TaskError(
            f"CUDA was used in this process before Troth could set {_WORKSPACE_NAME}: import troth.training first, or set "
            f"{_WORKSPACE_NAME}={_WORKSPACE} before Python starts"
        )


def settings(device_type: str, tf32: bool) -> tuple[ProcessSetting, ...]:
    """Everything that is held for gradients on this kind of device."""
    # On a CPU an operation without a deterministic version repeats as a rule: `check_pure` tells.
    strict = device_type != "cpu"
    general = (
        _deterministic(_ERROR if strict else _WARN),
        ProcessSetting(
            "fill memory",
            _C._get_deterministic_fill_uninitialized_memory,
            _C._set_deterministic_fill_uninitialized_memory,
            False,
        ),
        *(_precision(torch.backends.mkldnn, name, False) for name in ("matmul", "conv", "rnn")),
    )
    return tuple(setting for setting in (*general, *(_accelerator(tf32) if strict else ())) if setting is not None)


def _accelerator(tf32: bool) -> tuple[ProcessSetting | None, ...]:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return (
        _attribute(cudnn, "deterministic", True),
        _attribute(cudnn, "benchmark", False),
        _precision(torch.backends.cuda, "matmul", tf32),
        *(_precision(cudnn, name, tf32) for name in ("conv", "rnn")),
        _attribute(matmul, "allow_bf16_reduced_precision_reduction", False),
        _attribute(matmul, "allow_fp16_reduced_precision_reduction", False),
        _attribute(matmul, "allow_fp16_accumulation", False),
        ProcessSetting(
            "attention by cuDNN", torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp, False
        ),
    )


def _deterministic(mode: int) -> ProcessSetting:
    def put(value: int) -> None:
        # PyTorch's own function also imports and changes the compiler's configuration.
        _C._set_deterministic_algorithms(value > 0, warn_only=value == _WARN)

    return ProcessSetting("algorithms", torch.get_deterministic_debug_mode, put, mode)


def _attribute(owner: Any, name: str, wanted: Any) -> ProcessSetting | None:
    """A flag that is an attribute of one of PyTorch's modules; older versions lack some of them."""
    if not hasattr(owner, name):
        return None
    return ProcessSetting(name, lambda: getattr(owner, name), lambda value: setattr(owner, name, value), wanted)


def _precision(backend: Any, name: str, tf32: bool) -> ProcessSetting | None:
    """The inner precision of float32 for one kind of operation, in the words of this version of PyTorch."""
    operations = getattr(backend, name, None)
    if hasattr(operations, "fp32_precision"):
        return ProcessSetting(
            name,
            lambda: _said(operations),
            lambda value: setattr(operations, "fp32_precision", value),
            "tf32" if tf32 else _IEEE,
            lambda value: _give_back(operations, value),
        )
    if backend is torch.backends.cudnn:
        return _attribute(backend, "allow_tf32", tf32)
    # Before 2.9 one setting is for CUDA's and the CPU's matrix products.
    precision = "high" if tf32 else "highest"
    if name == "matmul":
        return ProcessSetting(
            "matmul", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, precision
        )
    return None


def _said(operations: Any) -> str:
    found: str = operations.fp32_precision
    return _IEEE if found == _INHERITED else found  # nobody has said otherwise


def _give_back(operations: Any, value: str) -> None:
    """Restore it, if possible by leaving it to the setting above: the user's later word on that one still counts."""
    operations.fp32_precision = _INHERITED
    if _said(operations) != value:
        operations.fp32_precision = value


class _Held:
    """The settings of the process while gradients are computed; those that it had before come back with the last one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        self._inside: list[int] = []  # threads, each as often as it is inside of a gradient
        self._waiting = 0
        self._wanted: tuple[str, bool] | None = None
        self._before: list[tuple[ProcessSetting, Any]] = []
        self._tables: dict[tuple[str, bool], tuple[ProcessSetting, ...]] = {}

    def take(self, device_type: str, tf32: bool) -> None:
        wanted = device_type, tf32 and device_type != "cpu"
        with self._lock:
            while self._inside and wanted != self._wanted:
                self._wait()
            if not self._inside:
                self._change(wanted)
            self._inside.append(threading.get_ident())

    def release(self) -> None:
        with self._lock:
            self._inside.remove(threading.get_ident())
            if not self._inside:
                self._restore()
                if self._waiting:
                    self._turn.notify_all()

    def _wait(self) -> None:
        # A thread that waited for itself would wait for ever.
        assert threading.get_ident() not in self._inside, "a gradient inside a gradient with other settings"
        self._waiting += 1
        self._turn.wait()
        self._waiting -= 1

    def _change(self, wanted: tuple[str, bool]) -> None:
        if wanted not in self._tables:
            self._tables[wanted] = settings(*wanted)
        self._wanted = wanted
        try:
            for setting in self._tables[wanted]:
                before = setting.get()
                if before != setting.wanted:
                    setting.put(setting.wanted)
                    self._before.append((setting, before))
        except BaseException:
            self._restore()
            raise

    def _restore(self) -> None:
        while self._before:
            setting, before = self._before.pop()
            (setting.give_back or setting.put)(before)
        self._wanted = None


def queues(sharing: bool) -> str:
    """Queues of a process. Processes that share a GPU by CUDA's service share its queues too: with 32 the fourth gets none."""
    return "8" if sharing else "32"


_HELD = _Held()
_TOO_LATE = os.environ.get(_WORKSPACE_NAME) is None and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
os.environ.setdefault(_WORKSPACE_NAME, _WORKSPACE)
_sharing = os.path.isdir(os.environ.get(_SHARING_NAME, _SHARING_FOLDER))
os.environ.setdefault(_QUEUES_NAME, queues(_sharing))  # for speed alone: no bits depend on it


# Files that a task reads and does not name in `data_files()`: with other bytes in them, peers would compute other gradients.
#
# Sees what Python opens (`open`, `numpy.load`, `torch.load`, Pillow, pandas), not what a library opens by itself in C or Rust
# (HDF5, Arrow, safetensors): for those the digest of a few batches, in the manifest, has to do.


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
