"""Starting processes that people do not see: Ctrl-C, which a terminal sends to all, is for the one that they started."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Processes started here ignore Ctrl-C from their first moment, imports included; the parent ends them.

    One that ignored it later, by itself, would print a traceback if it came before."""
    if threading.current_thread() is not threading.main_thread():  # no other may set handlers, or is interrupted
        yield
        return
    before: Any = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
