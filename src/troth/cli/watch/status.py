"""`troth status`: how members do, for people and for scripts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from troth.errors import OperatorError

if TYPE_CHECKING:
    from troth.watch.health import Health


class StatusError(OperatorError):
    """Nothing to say about a folder; the message says why."""


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
    from troth.cli.watch.target import RUNS, run_folder
    from troth.watch.folder import RunFolder
    from troth.watch.health import healths

    given = [run_folder(one) for one in folders or ()]
    if not given:
        given = [RunFolder(one) for one in sorted(RUNS.glob("*/")) if one.is_dir()]
    found: list[Health] = []
    for folder in given:
        here = list(healths(folder))
        if not here and folders:
            raise StatusError(f"{folder.path}: no status.json and no events; is this a run's folder, and has it begun?")
        found += here
    if not found:
        raise StatusError(f"no run in {RUNS}/: name a folder")
    for one in found:
        typer.echo(_as_json(one) if json else one.line())
    if not all(one.well for one in found):
        raise typer.Exit(1)


def _as_json(one: "Health") -> str:
    import msgspec

    more = {"folder": str(one.folder), "age_s": round(one.age_s, 1), "stale": one.stale}
    return msgspec.json.encode(msgspec.to_builtins(one.status) | more).decode()
