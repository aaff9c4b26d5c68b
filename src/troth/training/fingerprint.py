"""Digests of a task's code and data, to compare before a run starts: do two machines train the same thing?

Neither is a proof; audits catch a peer whose gradients differ. They save an honest member from being banned for an old
copy of a file.
"""

import hashlib
import inspect
import sys
from pathlib import Path

import torch

from troth.crypto import Digest, Seed, blob_digest, derive, stream, tagged_hash
from troth.specs import file_of
from troth.training.task import Task, TaskError

_BATCHES = 4  # batches of public seeds


def code_file(spec: str, task: Task | None = None, folder: Path | None = None) -> Path:
    """The source file that defines a task; a built-in one is asked where it comes from."""
    if (named := file_of(spec)) is not None:
        return (folder or Path()) / named
    file = getattr(sys.modules.get(type(task).__module__), "__file__", None)
    if file is None:
        raise TaskError(f"the source of task '{spec}' cannot be found: install Troth as files, not as an archive")
    return Path(file)


def code_digest(file: Path) -> Digest:
    """The plain SHA-256 of one file, as `sha256sum` shows it.

    Does not see what the file imports: other versions of PyTorch or of a module of your own give the same digest.
    """
    return _file_digest(file, "the task's code")


def data_digest(task: Task) -> Digest:
    """The contents of `task.data_files()`, in that order, and the batches of a few fixed seeds.

    Catches: another, damaged or incomplete file, files in another order, other preprocessing, another version of a
    dataset that comes with a library. Does not catch: data that no file names and none of these few batches show. Names and
    folders do not count. Batches count bit by bit, so `batch` should only select, scale and draw: results of `exp` or of a
    convolution differ between machines in their last bits, and belong in `loss`.
    """
    parts: list[bytes] = [_file_digest(Path(file), "data file") for file in task.data_files()]
    parts.append(len(parts).to_bytes(8, "big"))
    for k in range(_BATCHES):
        parts.append(_batch_digest(task, derive(0, "data digest", k)))
    return tagged_hash("troth/data/1", *parts)


def file_digests(task: Task, folder: Path | None = None) -> dict[str, Digest]:
    """The plain SHA-256 of each of `task.data_files()`, by its path, relative to the folder (the task file's) if below it.

    For people: a list of the files to send, and the name of the one that differs. `data_digest` is what counts.
    """
    base = (folder or Path(inspect.getfile(type(task).model)).parent).resolve()
    digests: dict[str, Digest] = {}
    for file in map(Path, task.data_files()):
        path = file.resolve()
        name = path.relative_to(base).as_posix() if path.is_relative_to(base) else str(file)
        digests[name] = _file_digest(file, "data file")
    return digests


def _batch_digest(task: Task, seed: Seed) -> Digest:
    batch = task.batch(stream(seed, "batch"))
    parts: list[bytes] = []
    for name in sorted(batch):
        tensor = batch[name].detach().cpu().contiguous()
        parts += [name.encode(), str(tensor.dtype).encode(), repr(tuple(tensor.shape)).encode()]
        parts.append(blob_digest(tensor.reshape(-1).view(torch.uint8).numpy().tobytes()))
    return tagged_hash("troth/batch/1", *parts)


def _file_digest(file: Path, what: str) -> Digest:
    try:
        with file.open("rb") as opened:
            return Digest(hashlib.file_digest(opened, "sha256").digest())
    except OSError as error:
        raise TaskError(f"cannot read {what} {file}: {error.strerror}") from error
