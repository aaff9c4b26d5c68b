"""The files that have to be sent to everybody, beside the manifest: the task's code and data."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from troth.crypto import Digest
from troth.specs import file_of
from troth.training import Task
from troth.training.fingerprint import file_digests


def code_files(task: str, folder: Path, modules: Iterable[ModuleType] | None = None) -> tuple[Path, ...]:
    """The task's file and the modules beside it that it imports, relative to `folder`; none for a built-in task."""
    name = file_of(task)
    if name is None:
        return ()
    file = (folder / name).resolve()
    loaded = _imported() if modules is None else modules
    places = [Path(place) for one in loaded if isinstance(place := getattr(one, "__file__", None), str)]
    known = {place.resolve() for place in places if place.is_absolute()}  # PyTorch has modules of invented files
    beside = {place for place in known if place.is_relative_to(file.parent) and not _is_installed(place, file.parent)}
    return (Path(name), *sorted(place.relative_to(folder.resolve()) for place in beside - {file}))


def data_files(task: Task) -> tuple[Path, ...]:
    """The data files, each once, as this machine names them."""
    return tuple(dict.fromkeys(Path(file) for file in task.data_files()))


def data_digests(task: Task) -> tuple[tuple[str, Digest], ...]:
    """Name and SHA-256 of each of the data files: names that tell them apart, and nothing else of this machine's folders.

    None at all if one file goes by two paths: nobody could say which is which."""
    files, digests = data_files(task), file_digests(task).values()
    return tuple(zip(short_names(files), digests, strict=True)) if len(files) == len(digests) else ()


def short_names(files: Sequence[Path]) -> list[str]:
    """The last part of each path; where files share it, as many of the last parts as tell them apart."""
    for parts in range(1, max((len(file.parts) for file in files), default=0) + 1):
        names = ["/".join(file.parts[-parts:]) for file in files]
        if len(set(names)) == len(names):
            return names
    return [f"{number} {file.name}" for number, file in enumerate(files, 1)]


def _imported() -> list[ModuleType]:
    """All modules but those that nothing imports: the program itself, and plug-ins, each of which is run by its path."""
    return [
        module
        for name, module in list(sys.modules.items())
        if name not in ("__main__", "__mp_main__") and not name.startswith("troth_plugin_")
    ]


def _is_installed(place: Path, folder: Path) -> bool:
    """Whether a module beside the task comes with a package (`.venv`), or with Troth itself (a clone)."""
    inside, ours = place.relative_to(folder), Path(sys.modules["troth"].__file__ or "").resolve().parent
    return (
        "site-packages" in inside.parts
        or place.is_relative_to(ours)
        or place.is_relative_to(Path(sys.prefix).resolve())
    )
