"""Data as arrays that can be memory-mapped: made once out of the user's files, and kept in a cache folder.

A prepared folder is named by the contents of the files that it was made from, so it is never out of date, and it appears
whole or not at all: it is written beside its place and renamed.
"""

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from troth.training import file_reads
from troth.training.errors import TaskError

_FORMAT = "2"  # of what is prepared: with another number, everything is made anew
_QUIET_S = 2.0  # work that takes longer is reported, and then as often
_CHUNK = 1 << 22

Make = Callable[[Path, "Progress"], None]  # writes into a folder


class Progress:
    """Lines on standard error about work that takes more than two seconds."""

    def __init__(self, what: str) -> None:
        self._what, self._told_at = what, monotonic()

    def at(self, done: float) -> None:
        """Say how far it is, from 0 to 1, unless that was said a moment ago."""
        if monotonic() - self._told_at >= _QUIET_S:
            self._told_at = monotonic()
            print(f"preparing {self._what}: {done:.0%}", file=sys.stderr, flush=True)


def prepared(name: str, sources: Sequence[Path], make: Make) -> Path:
    """The folder that `make` fills from these files, or did so earlier."""
    key = hashlib.sha256(f"troth/prepared/{_FORMAT}/{name}".encode())
    for source in sources:
        key.update(_digest(source))
    place = cache_folder() / f"{name}-{key.hexdigest()[:32]}"
    if not place.is_dir():
        with file_reads.unwatched():
            _make(place, make, Progress(f"{name} from {sources[0].parent}"))
    return place


def array(folder: Path, name: str) -> NDArray[Any]:
    """An array of a prepared folder, memory-mapped: rows are read from the disk when they are asked for."""
    with file_reads.unwatched():  # made by us, out of files that are watched
        mapped: NDArray[Any] = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    return mapped


def cache_folder() -> Path:
    """`troth` in the user's cache folder: $XDG_CACHE_HOME, or ~/.cache."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if os.path.isabs(named) else Path("~/.cache").expanduser()) / "troth"


def _make(place: Path, make: Make, progress: Progress) -> None:
    partial: Path | None = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=place.parent))
        make(partial, progress)
        partial.chmod(0o755)
        partial.rename(place)
    except OSError as error:
        if place.is_dir():
            return  # another process was faster
        raise TaskError(
            f"cannot prepare data in {place.parent}: {error.strerror or error}; make room there, or name a folder that can be "
            "written to with XDG_CACHE_HOME"
        ) from error
    finally:
        if partial is not None and partial.exists():
            shutil.rmtree(partial, ignore_errors=True)


def _digest(source: Path) -> bytes:
    try:
        stat = source.stat()
        return _digest_of(str(source), (stat.st_size, stat.st_mtime_ns))
    except OSError as error:
        raise TaskError(f"cannot read {source}: {error.strerror}") from error


@cache
def _digest_of(source: str, state: tuple[int, int]) -> bytes:
    """Once for a file that keeps its size and time while the process runs."""
    digest, progress, done = hashlib.sha256(), Progress(f"{source} (reading it)"), 0
    with open(source, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress.at(done / max(state[0], 1))
    return digest.digest()
