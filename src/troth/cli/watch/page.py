"""`--page` of the commands that make a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from troth.cli.watch.keys import key_within
from troth.cli.watch.watch import has_desktop, open_in_browser
from troth.errors import OperatorError

Page = Annotated[
    bool,
    typer.Option("--page", help="Show the run on a web page of this machine, as 'troth watch' does, while it lasts."),
]
PagePort = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port of that page.", show_default="8420, or the next free one")
]
PageHost = Annotated[
    str,
    typer.Option(help="Address of that page. Beyond this machine it asks for a token, which is part of its address."),
]
HOST = "127.0.0.1"
_LINGER_S = 2.0  # so that viewers see the end
_OFFER_S, _STAY_S = 10.0, 60.0


@dataclass(frozen=True)
class PageOptions:
    """What was asked for."""

    asked: bool
    host: str = HOST
    port: int | None = None
    optional: bool = False  # a page that cannot be served is no reason to end
    stays: bool = (
        True  # for a minute, once the run is over: who looks away for a moment, or loads it again, still sees the end
    )

    @contextmanager
    def of(self, folder: Path, *, new: bool = False) -> Iterator[str]:
        """Serve the folder's page while inside, in another process, if asked to. Gives its address, or nothing.

        `new`: a run is about to begin in the folder, and the one that is there now is not shown."""
        if not self.asked:
            yield ""
            return
        from troth.cli.fields import as_options
        from troth.watch.page_process import start_page

        try:
            with as_options(("page",), {"host": "page-host", "port": "page-port"}):
                # A port that was named is wanted for the next run.
                stay_s = _STAY_S if self.stays and self.port is None else 0.0
                process = start_page(folder, host=self.host, port=self.port, linger_s=_LINGER_S, stay_s=stay_s, new=new)
        except OperatorError as error:
            if not self.optional:
                raise
            typer.echo(f"No page: {error}", err=True)
            yield ""
            return
        with process:
            typer.echo(f"Page: {process.address}", err=True)
            yield process.address


def offer_to_open(address: str) -> None:
    """Ask whether to open it, where there is a desktop and somebody who can answer; go on without an answer."""
    if has_desktop():
        answer = key_within(_OFFER_S, f"Open it in a browser? y/n (it goes on without in {_OFFER_S:.0f} s) ")
        if answer is not None and answer in "yY\r\n":
            open_in_browser(address)


def stay_up(address: str) -> None:
    """Keep the page for a minute, or until a key is pressed; not where nobody could press one."""
    key_within(_STAY_S, f"\nThe page {address} stays up for a minute; any key ends it. ")
