"""`troth watch`: see a run, live or from its files."""

import os
import signal
import sys
import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer


def watch(
    run: Annotated[
        Path, typer.Argument(help="A run's folder; or a run.toml, for the folder in ./runs that takes part in it.")
    ],
    manifest: Annotated[
        Path | None,
        typer.Option("--run", help="The run.toml of a folder that has a journal and no events: it is told from that."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to serve at. Beyond this machine a token is asked for.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to serve at.", show_default="8420, or the next free one")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="TROTH_PAGE_TOKEN",
            help="Ask viewers for this, also on this machine; 'new' makes one up. In the environment others do not see it.",
        ),
    ] = None,
    open: Annotated[
        bool, typer.Option("--open/--no-open", help="Open it in a browser, if there is a desktop.")
    ] = False,
    terminal: Annotated[bool, typer.Option("--terminal", help="Show the run here instead of on a web page.")] = False,
) -> None:
    """See a run of this machine on a web page: members, simulations and swarms, while they train or afterwards.

    It only reads the folder, whoever trains there; any number of these may run. Ctrl-C ends it, and not the run.
    """
    from troth.cli.fields import as_options
    from troth.cli.watch.target import run_folder, with_events
    from troth.watch.guard import new_token
    from troth.watch.server import PageServer

    if terminal:
        from troth.watch.terminal import watch_here

        with with_events(run_folder(run), manifest) as folder:
            watch_here(folder)
        return
    with (
        with_events(run_folder(run), manifest) as folder,
        as_options(("host", "port", "token")),
        PageServer(folder, host=host, port=port, token=new_token() if token == "new" else token) as server,
    ):
        typer.echo(f"Page: {server.address}")
        if not folder.events.exists():
            typer.echo(f"{folder.path} has no events yet: the page waits for them", err=True)
        typer.echo("Ctrl-C ends it", err=True)
        if open:
            open_in_browser(server.address)
        _until_interrupted()


def _until_interrupted() -> None:
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    while not over.wait(3600.0):
        pass


def has_desktop() -> bool:
    """Whether a browser window could be seen by whoever types here."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_in_browser(address: str) -> None:
    """Never a browser that runs in the terminal: it would take it from us."""
    if not has_desktop():
        typer.echo(
            "there is no desktop here: open the address yourself, or from another machine through ssh -L", err=True
        )
    elif not webbrowser.open(address):
        typer.echo("no browser was found: open the address yourself", err=True)
