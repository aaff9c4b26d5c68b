"""Files of a folder that a stranger may have filled: ordinary files only, of bounded size, in the one form that is written."""

import json
import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

MOST_FILES = 10_000  # of one kind in one folder
_HEADER = 16 << 20  # the most bytes of names and shapes in a file of tensors


class FileError(ValueError):
    """A file that cannot be used; the message says why."""


def files_in(folder: Path, pattern: str) -> list[Path]:
    """Files of one kind, in the order of their names; none if the folder is not there."""
    return sorted(islice(_matching(folder, pattern), MOST_FILES))


def _matching(folder: Path, pattern: str) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            yield from (folder / entry.name for entry in entries if fnmatchcase(entry.name, pattern))
    except (FileNotFoundError, NotADirectoryError):
        return


def check_ordinary(path: Path, most: int) -> None:
    """Raise `FileError` unless this is an ordinary file of at most so many bytes: a pipe would block, a device never ends."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise FileError("this is no ordinary file")
    if found.st_size > most:
        raise FileError(f"{found.st_size:,} bytes are more than such a file has")


def read_bytes(path: Path, most: int) -> bytes:
    check_ordinary(path, most)
    with path.open("rb") as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise FileError(f"more than {most:,} bytes are more than such a file has")
    return raw


def load_tensors(path: Path, most: int) -> dict[str, Tensor]:
    """Tensors of a file whose header is written in its one form: nothing in it goes unread."""
    from safetensors.torch import load_file

    check_ordinary(path, most)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(min(length, _HEADER + 1))
    if len(header) != length:
        raise FileError("its header is cut, or too long")
    _check_header(header)
    try:
        return load_file(path)
    except Exception as error:  # the reader has no error type of its own
        raise FileError(f"it is damaged: {error}") from error


def _check_header(header: bytes) -> None:
    try:
        named: Any = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise FileError("its header is damaged") from error
    written = json.dumps(named, separators=(",", ":"), ensure_ascii=False).encode()
    padded = written + b" " * (-len(written) % 8)
    if header != padded or not isinstance(named, dict) or "__metadata__" in named:
        raise FileError("its header is not written the one way headers are written")
