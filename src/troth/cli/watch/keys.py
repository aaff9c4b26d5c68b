"""A single key from whoever sits at the terminal, if anybody does."""

import os
import select
import sys
from contextlib import suppress


def at_terminal() -> bool:
    """Whether somebody sees what is said and can answer: not in a pipe, and not in the background."""
    try:
        return sys.stdin.isatty() and sys.stderr.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # no terminal of ours, or streams that are closed or made up
        return False


def key_within(seconds: float, question: str) -> str | None:
    """The key that is pressed after the question; None after so many seconds, after Ctrl-C, and at once where nobody is there."""
    if not at_terminal():
        return None
    import termios
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle)  # forgets what was typed before the question
        sys.stderr.write(question)
        sys.stderr.flush()
        if select.select([handle], [], [], seconds)[0]:
            return os.read(handle, 16).decode("ascii", "replace")[:1]
    except KeyboardInterrupt:
        pass
    finally:
        with suppress(termios.error):
            termios.tcsetattr(handle, termios.TCSADRAIN, before)
        sys.stderr.write("\n")
    return None
