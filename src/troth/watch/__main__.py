"""`python -m troth.watch`: the page's server, as `--page` of other commands starts it. People use `troth watch`.

Reads what to serve as a line of JSON, and says its address, or what is wrong, as another one. Ends some time after the process
that started it: the end of standard input tells, however that one ended.
"""

import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from troth.errors import OperatorError
from troth.watch.folder import RunFolder
from troth.watch.server import HOST, PageServer

_NICENESS = 10  # whoever trains comes first


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What to serve. Not arguments of the process: every user of the machine can read those, and the token is among them."""

    folder: str
    host: str = HOST
    port: int | None = None
    token: str | None = None
    linger_s: float = 0.0  # after the end of the process that started it
    stay_s: float = 0.0  # longer than that, if the run is over for good
    ignored: str = ""  # a stream that is not to be shown: see `LiveRun`


class Answer(msgspec.Struct, frozen=True):
    address: str = ""
    error: str = ""


def main() -> None:
    with suppress(OSError):
        os.nice(_NICENESS)
    parent = os.getppid()
    wanted = msgspec.json.decode(sys.stdin.buffer.readline(), type=Wanted)
    folder = RunFolder(Path(wanted.folder))
    try:
        server = PageServer(folder, host=wanted.host, port=wanted.port, token=wanted.token, ignored=wanted.ignored)
    except OperatorError as error:
        _say(Answer(error=str(error)))
        sys.exit(2)
    with server:
        _say(Answer(address=server.address))
        _wait_for_end_of(parent)
        time.sleep(wanted.linger_s)
        if server.over:
            time.sleep(wanted.stay_s)


def _say(answer: Answer) -> None:
    with suppress(OSError):
        os.write(1, msgspec.json.encode(answer) + b"\n")


def _wait_for_end_of(parent: int) -> None:
    """Wait until nobody has the other end of standard input, or the parent is gone: its children may have inherited that."""
    while os.getppid() == parent:
        if select.select([0], [], [], 1.0)[0] and not os.read(0, 4096):
            return


if __name__ == "__main__":
    main()
