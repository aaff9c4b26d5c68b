"""Files that are written whole or not at all, and are still there after a power cut; locks, output folders, and TOML from others.

Nothing is written into a file that has its name already: a reader that has it open, or mapped, keeps what it began to read. Other
people's tools do write into files, though, so what has been checked must not lie in a file that has a name.
"""

import fcntl
import json
import os
import re
import stat
import tomllib
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from troth.errors import OperatorError

_LONGEST_NAME = 64


def safe_name(text: str) -> str:
    """Text that somebody else wrote, as the name of one file or folder: it leads to no other place, is not hidden, and means
    nothing to a shell that it is copied into. Letters, digits, dots, dashes and underscores stay as they are."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", text).lstrip(".-_")
    return name[:_LONGEST_NAME] or "unnamed"


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file whole or not at all: a reader never sees half of it, and a crash keeps the old one."""
    write_by(path, lambda partial: partial.write_bytes(content))


def write_by(path: Path, write: Callable[[Path], object], beside: str = ".partial") -> None:
    """The same for a file that `write` makes at another place, in pieces for instance. `beside` ends the name of that place: two
    processes that may write the same file at a time need different ones."""
    partial = path.with_name(path.name + beside)
    partial.touch()  # a folder that is not there, or not writable, is the system's error, whatever `write` makes of it
    write(partial)
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)


def open_regular(path: Path | str, *, folder: int | None = None) -> BinaryIO | None:
    """A file where others may write too: links are not followed, a pipe is not waited for, nothing but a file is opened. None if
    that is not possible. `folder`: handle of the one that a relative path begins in."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb", buffering=0)
    os.close(handle)
    return None


def read_into(file: FileIO, buffer: memoryview) -> bool:
    """Fill a buffer of bytes from a file. False if the file ends before."""
    while buffer:
        count = file.readinto(buffer)  # the system reads at most 2 GiB at once
        if not count:
            return False
        buffer = buffer[count:]
    return True


def sync_folder(folder: Path) -> None:
    """Flush a folder, so that a renamed file is there after a power cut too."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Lock:
    """A folder or file that is this process's alone, until `release` or the end of the process, however it comes."""

    def __init__(self, handle: int) -> None:
        self._release = weakref.finalize(self, os.close, handle)

    def release(self) -> None:
        self._release()


def lock_folder(folder: Path) -> Lock | None:
    """None if another process has it. The folder itself is locked: no file is left behind, and it may be moved meanwhile."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    if not is_free(handle, fcntl.LOCK_EX):
        os.close(handle)
        return None
    return Lock(handle)


def is_free(handle: int, kind: int) -> bool:
    """Take a lock on a file, unless another process has it; on a file system without locks nobody ever has."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


# Output folders: checked before hours of work, never overwritten by another run's results.


class OutputError(OperatorError):
    """An output file or folder that cannot be used; the message says why."""


def check_free(path: Path, *, overwrite: bool) -> None:
    """Refuse a file that is there, unless it may be replaced; to be asked before hours of work."""
    if path.exists() and not overwrite:
        raise OutputError(f"{path} exists already: choose another `out`, or `overwrite`")


@contextmanager
def writing(path: Path, way_out: str = "choose another `out`") -> Iterator[None]:
    """Name the file that could not be written inside, and the way out."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; {way_out}") from error


def claim(folder: Path, config: dict[str, Any], *, overwrite: bool) -> Path:
    """Make the folder, and check that it can be written to and holds no other run's summary."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".write-test"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OutputError(f"cannot write to `out` {folder}: {error.strerror}; choose another folder") from error
    summary = folder / "summary.json"
    if summary.exists() and not overwrite and _config_in(summary) != config:
        raise OutputError(f"{folder} holds the results of another run: choose another `out`, or add `overwrite`")
    return folder


@contextmanager
def claimed(folder: Path, config: dict[str, Any], *, overwrite: bool) -> Iterator[Path]:
    """Claim a folder for the work inside; if that fails, folders that were made for it and are still empty go again."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield claim(folder, config, overwrite=overwrite)
    except BaseException:
        for place in missing:
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()
        raise


def _config_in(summary: Path) -> Any:
    try:
        return json.loads(summary.read_text(encoding="utf-8"))["config"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


# TOML from somebody else, read within bounds: `tomllib` takes quadratic time for keys of many dots, and a frame of the stack for
# each bracket.


MOST_BYTES = 1 << 20
MOST_LINE = 4096  # bytes
MOST_DOTS = 16  # in a key
_KEY = re.compile(rb"\s*(?:\[[^\]\n]*|[^=\n]*)")  # of a header, or before the first `=`


def parse_toml(raw: bytes, what: str) -> dict[str, Any]:
    """Raises ValueError, and nothing else, for anything but a TOML file of ordinary size and depth; `what` such a file is."""
    if len(raw) > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES:,} bytes: no {what} is")
    for number, line in enumerate(raw.split(b"\n"), 1):
        if len(line) > MOST_LINE:
            raise ValueError(f"line {number} has more than {MOST_LINE:,} bytes: break it into several")
        if line.count(b".") > MOST_DOTS and (key := _KEY.match(line)) and key[0].count(b".") > MOST_DOTS:
            raise ValueError(f"line {number}: a key has more than {MOST_DOTS} dots: no {what} has such a key")
    try:
        return tomllib.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"not a text in UTF-8: {error.reason}") from error
    except RecursionError as error:
        raise ValueError(f"nested too deeply: no {what} is") from error
    except ValueError as error:  # also of a number that is too long
        raise ValueError(f"not TOML: {error}") from error
