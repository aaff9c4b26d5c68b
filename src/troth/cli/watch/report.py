"""`troth report`: a run in one file, to send to others."""

from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated

import typer

from troth.errors import OperatorError

if TYPE_CHECKING:
    from troth.events.kinds import Event

REPORT = "report.html"


class ReportError(OperatorError):
    """A report that cannot be made, or not there; the message says why."""


def report(
    run: Annotated[
        Path, typer.Argument(help="A run's folder; or a run.toml, for the folder in ./runs that takes part in it.")
    ],
    manifest: Annotated[
        Path | None,
        typer.Option("--run", help="The run.toml of a folder that has a journal and no events: it is told from that."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default=f"{REPORT} in the run's folder")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if there is one.")] = False,
) -> None:
    """Write the page of a run as one HTML file, which needs no server, no network and no Troth.

    It has everything that 'troth watch' shows at this moment, names and reasons of all peers included, and no evidence files.
    """
    from troth.cli.watch.target import run_folder, with_events
    from troth.files import write_text

    folder = run_folder(run)
    path = out or folder.path / REPORT
    if path.is_dir():
        raise ReportError(f"--out {path} is a folder: name a file in it")
    if path.exists() and not overwrite:
        raise ReportError(f"{path} is there already: choose another with --out, or add --overwrite")
    from troth.watch.bundle import bundle

    with with_events(folder, manifest) as told:
        lines = _lines(told.events)
    try:
        write_text(path, bundle(lines))
    except OSError as error:
        raise ReportError(f"cannot write --out {path}: {error.strerror}; choose another") from error
    typer.echo(f"{path} ({_size(path.stat().st_size)}, {len(lines):,} events): open it in a browser, or send it")


def _lines(events: Path) -> list[bytes]:
    """The events, written anew: fields that this version does not know are not passed on to others."""
    from troth.events.file import encode_event
    from troth.watch.tail import EventTail, Reader

    tail, lines = EventTail(events), list[bytes]()
    tail.refresh()
    reader = Reader(tail)
    while reader.behind:
        lines += [encode_event(_without_paths(event)) for event in reader.new()[0]]
    skipped = tail.skipped
    tail.close()
    if not lines:
        raise ReportError(f"{events.parent} has no events yet: nothing to report")
    if skipped:
        typer.echo(f"{skipped} lines of {events} are no events, and are left out", err=True)
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
