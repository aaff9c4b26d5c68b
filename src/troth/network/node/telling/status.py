"""A peer's present, for people and programs that look now and then: `status.json`, rewritten every second."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from troth.events.file import write_status
from troth.events.kinds import Doing, Status

_SAMPLE_S = 0.1
_WRITE_S = 1.0
_NOTHING: dict[str, Any] = {
    "waits_for": "",
    "unheard": (),
    "phase": "",
    "since": None,
    "left_s": None,
}  # goes on at the end


class StatusBoard:
    """Samples several times a second, writes once. Nothing it does can stop the training."""

    def __init__(self, folder: Path, look: Callable[[], Status], sample: Callable[[], None]) -> None:
        """`look` tells how the peer is doing; `sample` is called in between."""
        self._folder = folder
        self._look = look
        self._sample = sample
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="status", daemon=True)
        self._started_at = time.time()

    def start(self) -> None:
        self._last = self._look()
        self._write(self._last)
        self._thread.start()

    def end(self, doing: Doing, text: str) -> None:
        """The last status: it stays."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(Exception):  # how the peer ended is told whatever it looks like then
            self._last = self._look()
        self._write(msgspec.structs.replace(self._last, doing=doing, text=text, **_NOTHING))

    def _keep(self) -> None:
        due = time.monotonic() + _WRITE_S
        while not self._over.wait(_SAMPLE_S):
            # The protocol's thread changes what is looked at meanwhile: a look that fails is made again. If all of them do, the
            # status gets old, and everybody who reads it says so.
            with suppress(Exception):
                self._sample()
                if time.monotonic() >= due:
                    due = time.monotonic() + _WRITE_S
                    self._last = self._look()
                    self._write(self._last)

    def _write(self, status: Status) -> None:
        here = {"at": time.time(), "started_at": self._started_at, "pid": os.getpid(), "memory_bytes": resident_bytes()}
        write_status(self._folder, msgspec.structs.replace(status, **here))


def resident_bytes() -> int:
    """Memory of this process now; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
