"""Files to check: found below folders, and read, within bounds. Names and contents may be a stranger's."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from troth.errors import OperatorError, printable
from troth.evidence import file_format
from troth.evidence.errors import UnprovedError

NAMES = ("ban-*.json", "model.json")  # of files that are looked for in folders
MOST_FILES = 10_000  # checked in one call
MOST_ENTRIES = 1_000_000  # looked at in folders
MOST_DEPTH = 16  # of folders in folders


class VerifyError(OperatorError):
    """Files that cannot be found, or a run that is not named by its manifest or id."""


def expand(paths: Sequence[Path | str]) -> list[Path]:
    """Files to check: those named, and all evidence and `model.json` below the folders named, in order, each once.

    Links to folders are not followed. A path that does not exist, or nothing to check at all, is a mistake.
    """
    found: dict[Path, None] = {}
    walk = _Walk()
    for path in map(Path, paths):
        try:
            is_folder = stat.S_ISDIR(path.stat().st_mode)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise VerifyError(
                printable(f"cannot read {path}: {why}; name a file ban-….json, a model.json, or a folder")
            ) from error
        files = islice(walk.below(path), MOST_FILES + 1) if is_folder else [path]
        found.update(dict.fromkeys(sorted(files, key=_natural)))
        if len(found) > MOST_FILES:
            raise VerifyError(f"more than {MOST_FILES:,} files to check: name fewer at a time")
    if not found:
        raise VerifyError(
            printable(
                f"no evidence (ban-….json) and no model.json below {', '.join(map(str, paths))}: name a peer's folder"
            )
        )
    return list(found)


class _Walk:
    """Looks for files below folders, within bounds: a folder may be a stranger's."""

    def __init__(self) -> None:
        self._entries = 0

    def below(self, folder: Path, depth: int = 0) -> Iterator[Path]:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._entries += 1
                    if self._entries > MOST_ENTRIES:
                        raise VerifyError(
                            f"more than {MOST_ENTRIES:,} files below `paths`: name the folder evidence in them"
                        )
                    if entry.is_dir(follow_symlinks=False):
                        if depth < MOST_DEPTH:
                            yield from self.below(folder / entry.name, depth + 1)
                    elif any(fnmatchcase(entry.name, name) for name in NAMES):
                        yield folder / entry.name
        except OSError:
            yield folder  # which then cannot be read, and is told with the rest


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key: step 9 comes before step 31."""
    return [
        (int(piece) if len(piece) < 20 else 0, piece) if piece.isascii() and piece.isdigit() else (0, piece)
        for piece in re.split("([0-9]+)", str(path))
    ]


def read_text(path: Path) -> str:
    """Read a file of bounded length that is a file indeed: a pipe would block, and a device never ends."""
    most = file_format.MOST_BYTES
    with os.fdopen(_open_file(path), "rb") as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise OSError(0, "it is too large to be evidence of a ban or the proof of a model")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UnprovedError("the file is not text") from error


def _open_file(path: Path) -> int:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(0, "this is no ordinary file")
