"""Which places this peer has signed, on disk: a power cut must not look like a lie (SPEC B1)."""

import os
from pathlib import Path

from troth.crypto import Context
from troth.errors import OperatorError
from troth.protocol.journal import SignedBeforeError

_MOST_LINES = 4096  # then the file begins anew with the last line


class SlotsError(OperatorError):
    """The file cannot be written or is not ours; the message names the fix."""


class FileSlots:
    """`protocol.journal.Journal` in a file. A line for each place, written and synced before anything is signed for it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            lines = (
                path.read_text(encoding="ascii").split("\n")[:-1] if path.exists() else []
            )  # a torn line was not signed
            self._last = max((_parse(line) for line in lines), default=(-1, 0, 0))
            self._begin()
        except ValueError as error:
            raise SlotsError(f"{path} is damaged: move it away, and this peer comes back under a new key") from error
        except OSError as error:
            raise SlotsError(f"cannot write {path}: {error.strerror}") from error

    def _begin(self) -> None:
        """A short file, in place of the old one at once."""
        fresh = self._path.with_suffix(".new")
        with fresh.open("wb") as file:
            if self._last[0] >= 0:
                file.write(_line(self._last))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        _sync_folder(self._path.parent)
        self._lines = 0
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)

    def claim(self, place: Context) -> None:
        if (slot := (place.step, place.attempt, place.phase)) <= self._last:
            raise SignedBeforeError(f"step {place.step} was signed before")
        try:
            if self._lines >= _MOST_LINES:
                self.close()
                self._begin()
            os.write(self._file, _line(slot))
            os.fdatasync(self._file)
        except OSError as error:
            raise SlotsError(f"cannot write {self._path}: {error.strerror}; nothing is signed until it can") from error
        self._lines += 1
        self._last = slot

    @property
    def last_step(self) -> int:
        return self._last[0]

    def close(self) -> None:
        os.close(self._file)


def _line(slot: tuple[int, int, int]) -> bytes:
    return f"{slot[0]} {slot[1]} {slot[2]}\n".encode()


def _parse(line: str) -> tuple[int, int, int]:
    step, attempt, phase = map(int, line.split(" "))
    return step, attempt, phase


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
