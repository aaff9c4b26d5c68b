"""`python -m troth.watch FOLDER`: the page's server, as `--page` of other commands starts it. People use `troth watch`.

Says its address, or what is wrong, as one line of JSON. Ends some time after the process that started it: the end of standard
input tells, however that one ended.
"""

import argparse
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


class Answer(msgspec.Struct, frozen=True):
    address: str = ""
    error: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m troth.watch")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", default=HOST)
    parser.add_argument("--port", type=int)
    parser.add_argument("--linger", type=float, default=0.0)
    parser.add_argument("--stay", type=float, default=0.0)
    parser.add_argument("--ignored", default="")
    options = parser.parse_args()
    with suppress(OSError):
        os.nice(_NICENESS)
    token = os.environ.pop("TROTH_PAGE_TOKEN", None)  # not an argument: every user of the machine can read those
    parent = os.getppid()
    try:
        folder = RunFolder(options.folder)
        server = PageServer(folder, host=options.host, port=options.port, token=token, ignored=options.ignored)
    except OperatorError as error:
        _say(Answer(error=str(error)))
        sys.exit(2)
    with server:
        _say(Answer(address=server.address))
        _wait_for_end_of(parent)
        time.sleep(options.linger)
        if server.over:
            time.sleep(options.stay)


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
