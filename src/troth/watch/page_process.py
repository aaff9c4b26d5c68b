"""Starts the page's server beside a run, for `--page`: another process, which has no key and cannot hold up the training."""

import os
import subprocess
import sys
import sysconfig
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from troth.processes import interrupts_ignored
from troth.watch.__main__ import Answer, Wanted
from troth.watch.server import HOST, AddressError
from troth.watch.tail import stream_of

_START_S = 20.0


class PageProcess:
    """A server that runs until the end of the `with`, or of this process."""

    def __init__(self, address: str, process: "subprocess.Popen[bytes]") -> None:
        self.address = address
        self.process = process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()  # the sign to end, after it has lingered
        threading.Thread(target=self.process.wait, daemon=True).start()


def start_page(
    folder: Path,
    *,
    host: str = HOST,
    port: int | None = None,
    token: str | None = None,
    linger_s: float = 0.0,
    stay_s: float = 0.0,
    new: bool = False,
) -> PageProcess:
    """Serve a folder's page. Raises `AddressError` if that address cannot be had.

    The server lives `linger_s` seconds longer than the `with`, so that viewers see the end, and another `stay_s` if its run is
    over for good by then. `new`: a run is about to begin in the folder, and the one that is there now is not shown."""
    wanted = Wanted(
        folder=str(folder.absolute()),
        host=host,
        port=port,
        token=os.environ.get("TROTH_PAGE_TOKEN") if token is None else token,
        linger_s=linger_s,
        stay_s=stay_s,
        ignored=stream_of(folder) if new else "",
    )
    quiet = None if os.environ.get("TROTH_TRACEBACK") else subprocess.DEVNULL
    with interrupts_ignored():
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "troth.watch"],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=quiet,
            env=os.environ | _search_path(),
            cwd="/",
        )
    answer = _ask(process, wanted)
    if answer.error:
        process.kill()
        with process:  # closes its pipes
            process.wait()
        raise AddressError(answer.error)
    return PageProcess(answer.address, process)


def _ask(process: "subprocess.Popen[bytes]", wanted: Wanted) -> Answer:
    assert process.stdin is not None
    assert process.stdout is not None
    late = threading.Timer(_START_S, process.kill)
    late.start()
    try:
        with process.stdout:
            process.stdin.write(msgspec.json.encode(wanted) + b"\n")
            return msgspec.json.decode(process.stdout.readline(), type=Answer)
    except (OSError, ValueError):
        return Answer(
            error="the page's server did not start (TROTH_TRACEBACK=1 in the environment shows why); leave out `page`"
        )
    finally:
        late.cancel()


def _search_path() -> dict[str, str]:
    """As this process found Troth, so does that one; but never in the folder that it happens to be in (-P)."""
    home = str(Path(__file__).parents[2])
    if home in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {}  # it is found, and named here it would come before the standard library
    return {"PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH", ""))))}
