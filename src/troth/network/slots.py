"""Which places this peer has signed, on disk: a power cut must not look like a lie (SPEC B1)."""

import os
from pathlib import Path

import msgspec

from troth.crypto import Context
from troth.errors import OperatorError
from troth.evidence import sync_folder, write_bytes
from troth.protocol.frames import Begun
from troth.protocol.journal import NO_SLOT, SignedBeforeError, Slot, slot_of

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
            self._last = max((_parse(line) for line in lines), default=NO_SLOT)
            self._begin()
        except ValueError as error:
            raise SlotsError(f"{path} is damaged: move it away, and this peer comes back under a new key") from error
        except OSError as error:
            raise SlotsError(f"cannot write {path}: {error.strerror}") from error

    def _begin(self) -> None:
        """A short file, in place of the old one at once."""
        fresh = self._path.with_suffix(".new")
        with fresh.open("wb") as file:
            if self._last != NO_SLOT:
                file.write(_line(self._last))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        sync_folder(self._path.parent)
        self._lines = 0
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)

    def claim(self, place: Context) -> None:
        if (slot := slot_of(place)) <= self._last:
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

    def begins(self, begun: Begun) -> None:
        try:
            write_bytes(self._begun_path, msgspec.msgpack.encode(begun))
        except OSError as error:
            raise SlotsError(f"cannot write {self._begun_path}: {error.strerror}") from error

    @property
    def begun(self) -> Begun | None:
        try:
            return msgspec.msgpack.decode(self._begun_path.read_bytes(), type=Begun)
        except (OSError, ValueError):
            return None  # then this peer may have to look on for two steps

    @property
    def _begun_path(self) -> Path:
        return self._path.with_suffix(".begun")

    @property
    def last_step(self) -> int:
        return self._last[1]

    @property
    def last_incarnation(self) -> int:
        return self._last[0]

    def close(self) -> None:
        os.close(self._file)


def _line(slot: Slot) -> bytes:
    """Step, incarnation, attempt, phase."""
    incarnation, step, *rest = slot
    return (" ".join(map(str, (step, incarnation, *rest))) + "\n").encode()


def _parse(line: str) -> Slot:
    step, incarnation, attempt, phase = map(int, line.split(" "))
    return incarnation, step, attempt, phase
