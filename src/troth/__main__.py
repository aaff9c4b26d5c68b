"""`python -m troth`, and the command `troth`: Ctrl-C ends it without a traceback, at any time."""

import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

_INTERRUPTED = 130


def start() -> None:
    """Run the command line. It turns Ctrl-C into a sentence; while it is still imported, or ends, nobody else would."""
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's background jobs ignore it
    if heard:
        signal.signal(signal.SIGINT, _leave)
    from troth.cli import main

    try:
        try:
            if heard:
                signal.signal(signal.SIGINT, signal.default_int_handler)  # as asyncio and libraries want it
            main()
        finally:
            if heard:
                signal.signal(signal.SIGINT, _leave)
    except KeyboardInterrupt:  # once more, amid the farewell
        _leave()


def _leave(*_: object) -> NoReturn:
    """End at once: what there was to say is said, and the interpreter's own way out can be interrupted."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    start()
