"""Plug-ins: tasks, attacks and rules from a user's own file, or from an installed package.

    my_attack.py                      the only attack in that file
    my_attack.py:Loud:scale=3         the one of that name, with options
    loud:scale=3                      one of ours, or one that a package offers (entry points)

A file is run as importing it would, so it must be the user's own, and never one that came from a peer: a manifest's task comes
as pinned code, bytes that were compared with what was agreed on, and that a person has agreed to run. Imports nothing of ours but
errors and specs, so that every package with a table of names may use it.
"""

import dataclasses
import difflib
import functools
import hashlib
import importlib.util
import inspect
import linecache
import os
import re
import stat
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, Final, Generic, TypeVar

from troth.errors import OperatorError, printable
from troth.specs import SpecError, build, file_of, parse_file_spec, parse_spec, pick

# Pinned code: a Python file and modules beside it, read once. A manifest names it by its SHA-256. If it were read again to be
# run, or if an import looked for its modules on the disk, whoever can write there, or whoever sent the folder, could have one
# file checked and another one run. So everything is read into memory, hashed there, and compiled from there; modules that the
# manifest does not name are not looked for beside it.


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


def _execute(source: bytes, place: str, module: ModuleType) -> None:
    text = source.decode("utf-8", "replace")
    # For tracebacks, and for what compiles source again (torch.jit): without a time of change it is not read anew from the disk.
    linecache.cache[place] = (len(source), None, text.splitlines(keepends=True), place)
    exec(compile(source, place, "exec", dont_inherit=True), module.__dict__)


def _install(code: PinnedCode) -> None:
    finder = _Beside(code.place.parent, code.modules)
    for one in sys.meta_path:
        if isinstance(one, _Beside):
            finder.check_beside(one)
    for name in (file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in code.modules):
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
        is_folder = any(one.startswith(f"{stem}/") for one in self._modules)
        if (file is None and not is_folder) or self._is_anothers(fullname):
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
        _execute(self._modules[place.relative_to(self._folder).as_posix()], str(place), module)

    def _is_anothers(self, fullname: str) -> bool:
        """Whether the first part of a name belongs to Python, or to something installed."""
        first = fullname.partition(".")[0]
        if first in sys.stdlib_module_names or first in sys.builtin_module_names:
            return True
        found = PathFinder.find_spec(first)
        if found is None or found.origin is None:
            return False
        return not Path(found.origin).resolve().is_relative_to(self._folder) or "site-packages" in found.origin


# What a spec names

T = TypeVar("T")

_OURS = Path(__file__).parent
_SHORT = 8  # entries of a list that are written out in a name
_loaded: dict[tuple[Path, bytes], ModuleType] = {}  # a file is run once, and again when its content has changed


class PluginError(SpecError):
    """A plug-in that cannot be used; the message names the file, the line and what is wrong there."""


@dataclass(frozen=True)
class PluginKind(Generic[T]):
    """A kind of plug-in: its word, what fits in words, and the test for it."""

    word: str  # as in "unknown attack"
    what: str  # as in "'Loud' is not …"
    fits: Callable[[Any], bool]


def subclass_of(base: Callable[..., T], word: str, what: str) -> PluginKind[T]:
    """A kind whose members are complete subclasses of a class, or objects of one."""
    assert isinstance(base, type)  # declared as anything that makes one, since type[T] refuses abstract classes

    def fits(thing: Any) -> bool:
        if isinstance(thing, type):
            return issubclass(thing, base) and thing is not base and not inspect.isabstract(thing)
        return isinstance(thing, base)

    return PluginKind(word, what, fits)


def load(spec: str, kind: PluginKind[T], table: Mapping[str, Any], group: str, folder: Path | None = None) -> T:
    """Make what a spec names: a class is built with the spec's options, an object is taken as it is."""
    thing, options = find(spec, kind, table, group, folder)
    result: T = made(thing, options, spec)
    return result


def made(thing: Any, options: Mapping[str, str], spec: str) -> Any:
    """An object of a class that `find` found, with these options; an object as it is. Whatever goes wrong in a user's class is
    the user's to mend, and told in one line."""
    if not isinstance(thing, type):
        if options:
            raise SpecError(
                f"'{spec}' names an object, which has its options already: set them in the file, or name a class"
            )
        return thing
    try:
        return build(thing, options, spec)
    except OperatorError:
        raise
    except Exception as error:
        raise PluginError(blamed(error) or f"'{spec}': {in_one_line(error)}") from error


def find(
    spec: str,
    kind: PluginKind[T],
    table: Mapping[str, Any],
    group: str,
    folder: Path | None = None,
    code: PinnedCode | None = None,
) -> tuple[Any, dict[str, str]]:
    """What a spec names, and its options as text. A file is looked for in `folder`; without one, from where we run; with `code`
    that is run in its place, and nothing is read.

    Our own names come first, so that no package changes their meaning.
    """
    if file_of(spec) is not None:
        file, name, options = parse_file_spec(spec)
        path = (folder or Path()) / file
        module = run_file(path, kind.word) if code is None else _run_once(code, path)
        return _choose(module, name, kind, path), options
    name, options = parse_spec(spec)
    if name in table:
        return table[name], options
    points = [point for point in entry_points(group=group) if point.name == name]
    if len(points) > 1:
        raise SpecError(
            f"{kind.word} '{name}' is offered by {_and(_package(p) for p in points)}: uninstall one of them"
        )
    if points:
        return offered_thing(points[0], kind), options
    for own in (f"{name}.py", f"{name.replace('-', '_')}.py"):
        if ((folder or Path()) / own).is_file():
            raise SpecError(f"unknown {kind.word} '{name}': did you mean your file {own}?")
    return pick(dict.fromkeys([*table, *offered(group)]), name, kind.word), options


# Installed packages


def offered(group: str) -> dict[str, EntryPoint]:
    """Entry points of a group, by name; nothing is imported."""
    return {point.name: point for point in sorted(entry_points(group=group), key=lambda point: point.name)}


def offered_thing(point: EntryPoint, kind: PluginKind[T]) -> Any:
    """Import what a package offers."""
    try:
        thing = point.load()
    except Exception as error:
        raise PluginError(
            f"{kind.word} '{point.name}' of {_package(point)} cannot be imported: {in_one_line(error)}"
        ) from error
    if not kind.fits(thing):
        raise PluginError(f"{kind.word} '{point.name}' of {_package(point)}: {point.value} is not {kind.what}")
    return thing


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


# Files


def run_file(path: Path, word: str) -> ModuleType:
    """Run a user's file as a module; one that has not changed since is not run again.

    Its folder is put at the end of `sys.path`: a file may import a helper beside it, also later, in a function; and being last,
    nothing there hides a module of Python's, of ours or of a library (`random.py` is soon written).
    """
    if not path.is_file():
        raise SpecError(f"no {word} file at '{path}'")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise SpecError(f"cannot read '{path}': {error.strerror}") from error
    return _run_once(PinnedCode(path.resolve(), source), path, searches=True)


def _run_once(code: PinnedCode, shown: Path, *, searches: bool = False) -> ModuleType:
    key = code.place, code.key
    if key not in _loaded:
        _loaded[key] = _as_module(code, shown, searches=searches)
    return _loaded[key]


def _as_module(code: PinnedCode, shown: Path, *, searches: bool) -> ModuleType:
    """`searches`: modules are looked for in the file's folder too."""
    place, unique = code.place, hashlib.sha256(str(code.place).encode(errors="replace") + code.key).hexdigest()[:12]
    name = f"troth_plugin_{re.sub(r'[^0-9A-Za-z_]', '_', place.stem)}_{unique}"
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    module = module_from_spec(spec)
    folder = str(place.parent)
    added = searches and folder not in sys.path
    if added:
        sys.path.append(folder)
    sys.modules[name] = module  # dataclasses, typing and pickle look a class's module up
    try:
        # The bytes that were read, and no others; what a file prints is not a command's output.
        with redirect_stdout(sys.stderr):
            if code.modules:  # what it imports from beside it comes from memory too, now and later
                _install(code)
            _execute(code.source, str(place), module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if added:
            sys.path.remove(folder)
        if isinstance(error, PinnedError):
            raise
        raise PluginError(_import_error(error, place, shown, searches=searches)) from error
    return module


def _import_error(error: BaseException, place: Path, shown: Path, *, searches: bool) -> str:
    where, what = f"'{shown}'", in_one_line(error)
    if isinstance(error, SyntaxError):
        where = where if error.filename in (None, str(place)) else f"'{error.filename}'"
        line, what = error.lineno, f"{type(error).__name__}: {printable(str(error.msg))}"
    else:
        frame = next(
            (f for f in _frames(error) if Path(f.filename).parent == place.parent), None
        )  # a helper beside it counts
        where = where if frame is None or frame.filename == str(place) else f"'{frame.filename}'"
        line = None if frame is None else frame.lineno
    if isinstance(error, ModuleNotFoundError):
        beside = "put the file beside this one" if searches else "ask for a manifest that names it: this one does not"
        what += f"; install it here, or {beside}"
    return f"cannot use {where}{'' if line is None else f', line {line}'}: {what}"


def _choose(module: ModuleType, name: str, kind: PluginKind[T], path: Path) -> Any:
    """The thing of that name in a file, or the only one that the file itself defines."""
    things = vars(module)
    if name:
        if name in things and kind.fits(things[name]):
            return things[name]
        if name in things:
            raise SpecError(f"'{name}' in '{path}' is not {kind.what}{_lacking(things[name])}")
        own = _candidates(module, kind)
        near = difflib.get_close_matches(name, own, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"it has {_and(own) or 'none at all'}"
        raise SpecError(f"'{path}' has no {kind.word} '{name}': {hint}")
    own = _candidates(module, kind)
    if len(own) == 1:
        return next(iter(own.values()))
    if own:
        raise SpecError(
            f"'{path}' defines {len(own)} {kind.word}s, {_and(own)}: say which, as in {path.name}:{next(iter(own))}"
        )
    unfinished = next((_lacking(thing) for thing in things.values() if _is_own(thing, module) and _lacking(thing)), "")
    raise SpecError(f"'{path}' defines 0 {kind.word}s: it needs {kind.what}{unfinished}")


def _candidates(module: ModuleType, kind: PluginKind[T]) -> dict[str, Any]:
    """Things of a kind that a file defines, by name: not imported ones, not those with an underscore, aliases once."""
    own: dict[str, Any] = {}
    for name, thing in vars(module).items():
        alias = any(thing is other for other in own.values())
        if not name.startswith("_") and not alias and kind.fits(thing) and _is_own(thing, module):
            own[name] = thing
    return own


def _is_own(thing: Any, module: ModuleType) -> bool:
    defines = isinstance(thing, type) or inspect.isroutine(thing)
    return not defines or getattr(thing, "__module__", None) == module.__name__


def _lacking(thing: Any) -> str:
    missing: frozenset[str] = (
        getattr(thing, "__abstractmethods__", frozenset()) if isinstance(thing, type) else frozenset()
    )
    return f" ({thing.__name__} lacks {_and(sorted(missing))})" if missing else ""


# Names and errors


def absolute(spec: str) -> str:
    """The same spec for a process in another folder."""
    file = file_of(spec)
    return spec if file is None else spec.replace(file, str(Path(file).resolve()), 1).strip()


def in_its_folder(spec: str) -> tuple[Path, str]:
    """The folder of a spec's file, and the spec as it is written there; for a name, the current folder and the name."""
    file = file_of(spec)
    if file is None:
        return Path(), spec
    return Path(file).resolve().parent, spec.replace(file, Path(file).name, 1).strip()


def name_of(thing: Any, table: Mapping[str, Any] | None = None) -> str:
    """A thing as a person would name it, the same in every process: a spec as it is, else class or function and its options."""
    if isinstance(thing, str):
        return thing
    if isinstance(thing, functools.partial):
        return _with_options(name_of(thing.func, table), thing.keywords)
    kind = thing if isinstance(thing, type) or inspect.isroutine(thing) else type(thing)
    fields = dataclasses.fields(thing) if dataclasses.is_dataclass(thing) and not isinstance(thing, type) else ()
    options = {field.name: getattr(thing, field.name) for field in fields if field.init and field.repr}
    ours = next((name for name, entry in (table or {}).items() if entry is kind), None)
    if ours is not None:
        options = {name: value for name, value in options.items() if value != getattr(kind, name, dataclasses.MISSING)}
    return _with_options(ours or _qualified(kind), options)


def _with_options(name: str, options: Mapping[str, Any]) -> str:
    words = ",".join(f"{key}={_word(value)}" for key, value in options.items())
    return f"{name}:{words}" if words else name


def _word(value: Any) -> str:
    if value is None or isinstance(value, str | int | float | Path):
        return str(value)
    if isinstance(value, tuple | list) and len(value) <= _SHORT:
        return "+".join(map(_word, value))
    return name_of(value)  # never a repr, which may hold an address


def _qualified(kind: Any) -> str:
    module = sys.modules.get(kind.__module__)
    if module is not None and module in _loaded.values():
        return f"{Path(str(module.__file__)).name}:{kind.__qualname__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def blamed(error: BaseException) -> str | None:
    """An exception that came out of a user's file, in one line: file, line, function; None if no such file is to blame."""
    frames = _frames(error)
    files = {str(module.__file__) for module in _loaded.values()}
    if isinstance(error, AssertionError) and frames and Path(frames[0].filename).is_relative_to(_OURS):
        return None  # our bug
    found = next((frame for frame in frames if frame.filename in files), None)
    if found is None:
        return None
    return f"'{found.filename}', line {found.lineno}, in {found.name}: {in_one_line(error)}"


def in_one_line(error: BaseException) -> str:
    """Type and message of an exception, on one line that does nothing to a terminal."""
    message = printable(" ".join(str(error).split()))
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Frames of an exception, the innermost first."""
    return list(reversed(traceback.extract_tb(error.__traceback__)))


def _and(words: Iterable[str]) -> str:
    *others, last = list(words) or [""]
    return f"{', '.join(others)} and {last}" if others else last
