"""The files that have to be sent to everybody, beside the manifest: the task's code and data."""

import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from troth.specs import parse_spec
from troth.training import Task


def code_files(task: str, folder: Path, modules: Iterable[ModuleType] | None = None) -> tuple[Path, ...]:
    """The task's file and the modules beside it that it imports, relative to `folder`; none for a built-in task."""
    name = parse_spec(task)[0]
    if not name.endswith(".py"):
        return ()
    file = (folder / name).resolve()
    loaded = list(sys.modules.values()) if modules is None else modules
    places = [Path(place) for one in loaded if isinstance(place := getattr(one, "__file__", None), str)]
    known = {place.resolve() for place in places if place.is_absolute()}  # PyTorch has modules of invented files
    beside = {place for place in known if place.is_relative_to(file.parent) and not _is_installed(place, file.parent)}
    return (Path(name), *sorted(place.relative_to(folder.resolve()) for place in beside - {file}))


def data_files(task: Task) -> tuple[Path, ...]:
    """The data files, as this machine names them."""
    return tuple(dict.fromkeys(Path(file) for file in task.data_files()))


def _is_installed(place: Path, folder: Path) -> bool:
    """Whether a module beside the task comes with a package (`.venv`), or with Troth itself (a clone)."""
    inside, ours = place.relative_to(folder), Path(sys.modules["troth"].__file__ or "").resolve().parent
    return (
        "site-packages" in inside.parts
        or place.is_relative_to(ours)
        or place.is_relative_to(Path(sys.prefix).resolve())
    )
