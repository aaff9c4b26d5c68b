"""`troth watch`, `troth report`, `troth status`: see a run, live or from its files; and `--page` of commands that make one."""

import os
import select
import signal
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated

import typer

from troth.cli.fields import UsageError, with_options
from troth.errors import OperatorError, printable
from troth.events.file import EVENTS, first_event, stream_in
from troth.events.kinds import Began
from troth.watch.folder import RunFolder

if TYPE_CHECKING:
    from troth.events.kinds import Event
    from troth.watch.health import Health


RunPlace = Annotated[
    Path, typer.Argument(help="A run's folder; or a run.toml, for the folder in ./runs that takes part in it.")
]


def watch(
    run: RunPlace,
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
    from troth.watch.server import PageServer, new_token

    folder = folder_with_events(run)
    if terminal:
        from troth.watch.terminal import watch_here

        watch_here(folder)
        return
    with PageServer(folder, host=host, port=port, token=new_token() if token == "new" else token) as server:
        typer.echo(f"Page: {server.address}")
        if not stream_in(folder.path).exists():
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


# A single key from whoever sits at the terminal, if anybody does.


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


# `--page` of the commands that make a run.

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
        from troth.watch.page_process import start_page

        # A port that was named is wanted for the next run.
        stay_s = _STAY_S if self.stays and self.port is None else 0.0
        try:
            process = start_page(folder, host=self.host, port=self.port, linger_s=_LINGER_S, stay_s=stay_s, new=new)
        except OperatorError as error:
            why = with_options(str(error), {"page": "--page", "host": "--page-host", "port": "--page-port"})
            if not self.optional:
                raise OperatorError(why) from error
            typer.echo(f"No page: {why}", err=True)
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


# `troth report`: a run in one file, to send to others.

REPORT = "report.html"


def report(
    run: RunPlace,
    out: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default=f"{REPORT} in the run's folder")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if there is one.")] = False,
) -> None:
    """Write the page of a run as one HTML file, which needs no server, no network and no Troth.

    It has everything that 'troth watch' shows at this moment, names and reasons of all peers included, and no evidence files.
    """

    from troth.files import check_free, write_text, writing

    folder = folder_with_events(run)
    path = out or folder.path / REPORT
    if path.is_dir():
        raise UsageError(f"--out {path} is a folder: name a file in it")
    check_free(path, overwrite=overwrite)
    from troth.watch.bundle import bundle

    lines = _lines(folder.path)
    with writing(path):
        write_text(path, bundle(lines))
    typer.echo(f"{path} ({_size(path.stat().st_size)}, {len(lines):,} events): open it in a browser, or send it")


def _lines(folder: Path) -> list[bytes]:
    """The events, written anew: fields that this version does not know are not passed on to others."""
    from troth.events.file import encode_event
    from troth.watch.tail import EventTail, Reader

    tail, lines = EventTail(folder), list[bytes]()
    tail.refresh()
    reader = Reader(tail)
    while reader.behind:
        lines += [encode_event(_without_paths(event)) for event in reader.new()[0]]
    skipped = tail.skipped
    tail.close()
    if not lines:
        raise UsageError(f"{folder} has no events yet: nothing to report")
    if skipped:
        typer.echo(f"{skipped} lines of {stream_in(folder)} are no events, and are left out", err=True)
    return lines


def _without_paths(event: "Event") -> "Event":
    """Where files lie on this machine is nobody else's business: those who get the report put them where they like."""
    import msgspec

    from troth.events.kinds import Began

    if not isinstance(event, Began):
        return event
    return msgspec.structs.replace(event, manifest=PurePath(event.manifest).name, evidence="")


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


# `troth status`: how members do, for people and for scripts.


def status(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of members, swarms or simulations, or a run.toml.", show_default="all in ./runs"),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One line of JSON for each: status.json, and `folder`, `age_s`, `stale`.")
    ] = False,
) -> None:
    """Say in a line how each member of this machine does: step, members, loss, whom it waits for. It only reads files.

    A status is called stale if it was not renewed for a minute, or for 10 seconds and its process is gone; or if it is of a time
    to come.

    Exit codes: 0 all of them train, or their run is over; 1 one waits, is paused, stale, stopped, out of the run or ended by an
    error; 2 a mistake that the message names.
    """

    from troth.watch.folder import RunFolder
    from troth.watch.health import healths

    given = [run_folder(one) for one in folders or ()]
    if not given:
        given = [RunFolder(one) for one in sorted(RUNS.glob("*/")) if one.is_dir()]
    found: list[Health] = []
    for folder in given:
        here = list(healths(folder))
        if not here and folders:
            raise UsageError(f"{folder.path}: no status.json and no events; is this a run's folder, and has it begun?")
        found += here
    if not found:
        raise UsageError(f"no run in {RUNS}/: name a folder")
    for one in found:
        typer.echo(_as_json(one) if json else one.line())
    if not all(one.well for one in found):
        raise typer.Exit(1)


def _as_json(one: "Health") -> str:
    import msgspec

    more = {"folder": str(one.folder), "age_s": round(one.age_s, 1), "stale": one.stale}
    return msgspec.json.encode(msgspec.to_builtins(one.status) | more).decode()


# Which folder a command means that was given a folder or a manifest.

RUNS = Path("runs")
_MOST_NAMED = 5


def run_folder(given: Path) -> RunFolder:
    """The folder itself, or the one in which this machine takes part in the manifest's run."""
    if given.is_dir():
        return RunFolder(_only_one(given))
    if not given.exists():
        raise UsageError(f"{given}: there is no such folder or manifest")
    if (given.parent / EVENTS).exists():  # beside the manifest: a swarm's folder
        return RunFolder(given.parent)
    from troth.network.manifest.manifest import Manifest

    run = Manifest.load(given).run.id.hex()
    found = [folder for folder in _folders(RUNS) if run_in(folder) == run]
    if len(found) == 1:
        typer.echo(f"{given} is the run in {found[0]}", err=True)
        return RunFolder(found[0])
    if not found:
        raise UsageError(
            f"{given}: no folder in {RUNS}/ belongs to this run {run[:16]}; name the folder that 'troth join' was given "
            "(--folder), or join first"
        )
    raise UsageError(f"{given}: several folders belong to this run: {_names(found)}; name one of them")


def folder_with_events(given: Path) -> RunFolder:
    """The same; refuses a folder whose run has begun and left no events, where viewers would wait for ever."""
    folder = run_folder(given)
    if not stream_in(folder.path).exists() and any(folder.path.glob("journal/steps-*")):
        raise UsageError(
            f"{folder.path} has a journal, and {EVENTS} is gone: begin it again with 'troth join', look at another member's "
            "folder, or check the journal itself with 'troth audit'"
        )
    return folder


def run_in(folder: Path) -> str | None:
    """The run that a folder belongs to, as it says itself."""
    try:
        with (folder / "run").open("rb") as mark:
            return mark.read(100).decode("ascii", "replace").strip()
    except OSError:
        pass
    first = first_event(folder)
    return first.run if isinstance(first, Began) and first.run else None


def _only_one(folder: Path) -> Path:
    """A folder of several runs is no run's: better to say so than to wait there for ever."""
    if (folder / EVENTS).exists() or (folder / "run").exists() or (folder / "run.toml").exists():
        return folder
    below = [one for one in _folders(folder) if (one / EVENTS).exists()]
    if not below:
        return folder
    raise UsageError(f"{folder} holds {'several runs' if len(below) > 1 else 'a run'}: name {_names(below)}")


def _folders(place: Path) -> list[Path]:
    try:
        return sorted(one for one in place.iterdir() if one.is_dir())
    except OSError:
        return []


def _names(folders: list[Path]) -> str:
    more = f" or one of {len(folders) - _MOST_NAMED} others" if len(folders) > _MOST_NAMED else ""
    return printable(", ".join(map(str, folders[:_MOST_NAMED]))) + more
