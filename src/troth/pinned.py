"""A Python file and modules beside it, read once: the bytes that were hashed are the bytes that are run.

A manifest names code by its SHA-256. If that code were read again to be run, or if an import looked for its modules on the
disk, whoever can write there, or whoever sent the folder, could have one file checked and another one run. So everything is
read into memory, hashed there, and compiled from there; modules that the manifest does not name are not looked for beside it.
Imports nothing of ours but errors.
"""

import hashlib
import linecache
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Final

from troth.errors import OperatorError, printable

MOST_BYTES: Final = 4 << 20  # of one file of code
_LIST: Final = b"troth code\n"  # begins the list of several files; no Python file begins so


class PinnedError(OperatorError):
    """Code that cannot be read, or cannot be run as it was agreed on."""


@dataclass(frozen=True)
class CodeFile:
    """One file, as a person is shown it."""

    name: str  # relative to the manifest's folder, or to where packages are
    size: int
    digest: bytes  # SHA-256


def code_digest_of(files: Sequence[CodeFile]) -> str:
    """One SHA-256 for all of the code: a single file's own; else of the list that `sha256sum` prints, after a line `troth code`.

    The order counts: the first file is the one that is run, the others are those that it may import."""
    if len(files) == 1:
        return files[0].digest.hex()
    return hashlib.sha256(_LIST + b"".join(f"{one.digest.hex()}  {one.name}\n".encode() for one in files)).hexdigest()


@dataclass(frozen=True)
class PinnedCode:
    """The file that is run, and the modules that it may import from beside it."""

    place: Path  # of the file, without links: it tells the code where it lies, and is not read again
    source: bytes
    modules: Mapping[str, bytes] = field(default_factory=dict)  # by path relative to the file's folder: net/layers.py

    @property
    def contents(self) -> tuple[bytes, ...]:
        """Of the file and its modules, in the order in which they were read."""
        return (self.source, *self.modules.values())

    @property
    def key(self) -> bytes:
        """Tells code apart that differs in any of its bytes."""
        names = sorted(self.modules)
        files = [_file(self.place.name, self.source), *(_file(name, self.modules[name]) for name in names)]
        return bytes.fromhex(code_digest_of(files))


def read_code(folder: Path, file: str, beside: Sequence[str] = ()) -> tuple[PinnedCode, list[CodeFile]]:
    """Read the file and the modules, all named relative to `folder`, and none outside of it; each is opened once."""
    place, source = _read(folder, file)
    if source.startswith(_LIST):  # else agreeing to this "file" would agree to every file in its list
        raise PinnedError(f"{file} is a list of files, and no Python")
    modules: dict[str, bytes] = {}
    root = PurePosixPath(file).parent
    for name in beside:
        if not PurePosixPath(name).is_relative_to(root):
            raise PinnedError(f"{name} does not lie in the folder of {file}, so nothing there can import it")
        modules[PurePosixPath(name).relative_to(root).as_posix()] = _read(folder, name)[1]
    files = [_file(file, source)]
    files += [_file(name, raw) for name, raw in zip(beside, modules.values(), strict=True)]
    return PinnedCode(place, source, modules), files


def _file(name: str, raw: bytes) -> CodeFile:
    return CodeFile(name, len(raw), hashlib.sha256(raw).digest())


def _read(folder: Path, name: str) -> tuple[Path, bytes]:
    """An ordinary file of bounded length below the folder: a pipe would block, a device never ends, and a link to another
    place would have a program of this machine's own run, which somebody else chose."""
    path = folder / name
    try:
        place = path.resolve(strict=True)
        if not place.is_relative_to(folder.resolve()):
            raise PinnedError(f"{printable(str(path))} is a link to {printable(str(place))}: put the file itself there")
        handle = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise PinnedError(f"{printable(str(path))} is no ordinary file")
            raw = file.read(MOST_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, OperatorError):
            raise
        why = error.strerror if isinstance(error, OSError) else "no name of a file"
        raise PinnedError(f"cannot read the task's code {printable(str(path))}: {why}") from error
    if len(raw) > MOST_BYTES:
        raise PinnedError(f"{printable(str(path))} is longer than {MOST_BYTES:,} bytes: no task's code is")
    return place, raw


# Running


def run_pinned(code: PinnedCode, module: ModuleType) -> None:
    """Run the file in this module; what it imports from beside it comes from memory too, now and later."""
    if code.modules:
        _install(code)
    _run(code.source, str(code.place), module)


def _run(source: bytes, place: str, module: ModuleType) -> None:
    text = source.decode("utf-8", "replace")
    # For tracebacks, and for what compiles source again (torch.jit): without a time of change it is not read anew from the disk.
    linecache.cache[place] = (len(source), None, text.splitlines(keepends=True), place)
    exec(compile(source, place, "exec", dont_inherit=True), module.__dict__)


def _install(code: PinnedCode) -> None:
    finder = _Beside(code.place.parent, code.modules)
    for one in sys.meta_path:
        if isinstance(one, _Beside):
            finder.check_beside(one)
    for name in finder.names():
        loaded = sys.modules.get(name)
        place, ours = getattr(loaded, "__file__", None), isinstance(getattr(loaded, "__loader__", None), _Beside)
        # Loaded from the disk before, by the author's own program for instance: those are not known to be the agreed bytes.
        if isinstance(place, str) and not ours and Path(place).resolve().is_relative_to(code.place.parent):
            del sys.modules[name]
    sys.meta_path.insert(0, finder)


class _Beside(MetaPathFinder, Loader):
    """Imports the modules of a pinned file. A name that Python, Troth or a library has keeps its meaning."""

    def __init__(self, folder: Path, modules: Mapping[str, bytes]) -> None:
        self._folder = folder
        self._modules = dict(modules)

    def names(self) -> list[str]:
        """Dotted names of the modules."""
        return [self._dotted(file) for file in self._modules]

    def check_beside(self, other: "_Beside") -> None:
        """A module's name has one meaning in a process: two tasks that mean different files by it cannot be run in one."""
        for file, source in self._modules.items():
            if other._modules.get(file, source) != source:
                raise PinnedError(
                    f"another task of this process has another {file}: run this one in a process of its own"
                )

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        stem = fullname.replace(".", "/")
        file = next((one for one in (f"{stem}/__init__.py", f"{stem}.py") if one in self._modules), None)
        if (file is None and not self._has_below(stem)) or self._is_anothers(fullname):
            return None
        is_package = file is None or file.endswith("/__init__.py")
        spec = ModuleSpec(fullname, None if file is None else self, is_package=is_package)
        if file is not None:
            spec.origin = str(self._folder / file)
            spec.has_location = True  # type: ignore[attr-defined,unused-ignore]
        return spec  # a package looks for its modules nowhere on the disk

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        assert module.__spec__.origin is not None
        place = Path(module.__spec__.origin)
        _run(self._modules[place.relative_to(self._folder).as_posix()], str(place), module)

    def _has_below(self, stem: str) -> bool:
        return any(file.startswith(f"{stem}/") for file in self._modules)

    def _is_anothers(self, fullname: str) -> bool:
        """Whether the first part of a name belongs to Python, or to something installed."""
        first = fullname.partition(".")[0]
        if first in sys.stdlib_module_names or first in sys.builtin_module_names:
            return True
        found = PathFinder.find_spec(first)
        if found is None or found.origin is None:
            return False
        return not Path(found.origin).resolve().is_relative_to(self._folder) or "site-packages" in found.origin

    @staticmethod
    def _dotted(file: str) -> str:
        return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
