"""A peer's log: a text file of bounded size, with a line for everything that people were told, and for every step."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from troth.errors import printable

MOST_BYTES = 10_000_000  # of one file
FILES = 3  # log.txt, log.txt.1, log.txt.2: the newest first


class LogFile:
    """Lines with their time (UTC). A disk that is full costs the log, not the training."""

    def __init__(
        self,
        path: Path,
        most_bytes: int = MOST_BYTES,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._path = path
        self._most = most_bytes
        self._clock = clock
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        """Append one line; may be called from any thread."""
        line = f"{self._clock():%Y-%m-%dT%H:%M:%SZ} {printable(text)}\n".encode()
        try:
            with self._lock:
                self._make_room(len(line))
                with self._path.open("ab") as file:
                    file.write(line)
        except OSError:
            pass

    def _make_room(self, length: int) -> None:
        """Begin a new file where this one would grow too large; the oldest one goes."""
        if not self._path.exists() or self._path.stat().st_size + length <= self._most:
            return
        for number in range(FILES - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = self._path.with_name(f"{self._path.name}.{number - 1}") if number > 1 else self._path
            if newer.exists():
                newer.replace(older)
