"""Which folder a command means that was given a folder or a manifest."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from troth.errors import OperatorError, printable
from troth.events.file import EVENTS, MOST_LINE, EventError, decode_event
from troth.events.kinds import Began
from troth.watch.folder import RunFolder

RUNS = Path("runs")
_MOST_NAMED = 5


class TargetError(OperatorError):
    """Nothing to look at there; the message says what to do."""


def run_folder(given: Path) -> RunFolder:
    """The folder itself, or the one in which this machine takes part in the manifest's run."""
    if given.is_dir():
        return RunFolder(_only_one(given))
    if not given.exists():
        raise TargetError(f"{given}: there is no such folder or manifest")
    if (given.parent / EVENTS).exists():  # beside the manifest: a swarm's folder
        return RunFolder(given.parent)
    from troth.network.manifest.manifest import Manifest

    run = Manifest.load(given).run.id.hex()
    found = [folder for folder in _folders(RUNS) if run_in(folder) == run]
    if len(found) == 1:
        typer.echo(f"{given} is the run in {found[0]}", err=True)
        return RunFolder(found[0])
    if not found:
        raise TargetError(
            f"{given}: no folder in {RUNS}/ belongs to this run {run[:16]}; name the folder that 'troth join' was given "
            "(--folder), or join first"
        )
    raise TargetError(f"{given}: several folders belong to this run: {_names(found)}; name one of them")


@contextmanager
def with_events(folder: RunFolder, manifest: Path | None) -> Iterator[RunFolder]:
    """The folder; where it has a journal and no events, as members of earlier versions left it, with the events that it tells."""
    if folder.events.exists() or not any(folder.path.glob("journal/steps-*")):
        yield folder
        return
    if manifest is None:
        raise TargetError(
            f"{folder.path} has a journal, and no events beside it: name the run.toml of its run with --run"
        )
    from troth.events.file import EventFile
    from troth.network.manifest.manifest import Manifest
    from troth.watch.journal import journal_events

    run = Manifest.load(manifest)
    with TemporaryDirectory(prefix="troth-watch-") as place:
        file = EventFile(Path(place) / EVENTS)
        try:
            for event in journal_events(folder.path, run):
                file.add(event)
        finally:
            file.close()
        yield RunFolder(folder.path, told=Path(place) / EVENTS)


def run_in(folder: Path) -> str | None:
    """The run that a folder belongs to, as it says itself."""
    try:
        with (folder / "run").open("rb") as mark:
            return mark.read(100).decode("ascii", "replace").strip()
    except OSError:
        pass
    try:
        with (folder / EVENTS).open("rb") as file:
            first = decode_event(file.readline(MOST_LINE))
    except (OSError, EventError):
        return None
    return first.run if isinstance(first, Began) and first.run else None


def _only_one(folder: Path) -> Path:
    """A folder of several runs is no run's: better to say so than to wait there for ever."""
    if (folder / EVENTS).exists() or (folder / "run").exists() or (folder / "run.toml").exists():
        return folder
    below = [one for one in _folders(folder) if (one / EVENTS).exists()]
    if not below:
        return folder
    raise TargetError(f"{folder} holds {'several runs' if len(below) > 1 else 'a run'}: name {_names(below)}")


def _folders(place: Path) -> list[Path]:
    try:
        return sorted(one for one in place.iterdir() if one.is_dir())
    except OSError:
        return []


def _names(folders: list[Path]) -> str:
    more = f" or one of {len(folders) - _MOST_NAMED} others" if len(folders) > _MOST_NAMED else ""
    return printable(", ".join(map(str, folders[:_MOST_NAMED]))) + more
