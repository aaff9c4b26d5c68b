"""Nothing from a manifest is run before a person was told, and agreed.

Whoever writes a manifest chooses the task, and a task is a program: it runs with every right of the person who joins, beside
that person's key. So the code that a manifest names, a file beside it or a package that is installed here, is run only if its
SHA-256 is one that this person has agreed to. What was agreed to is kept in a file of the person's own, so that the same bytes
are asked about once; other bytes are other code. Built-in tasks are part of Troth, and need no consent.

`Manifest.make_task` is the only way from a manifest to its task, and asks `check_consent`: a command that forgets to ask a
person can run nothing.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from troth.crypto import Digest
from troth.errors import OperatorError, one_word, printable
from troth.network.manifest.files import differs
from troth.network.manifest.toml import ConsentError, ManifestError
from troth.plugins import CodeFile, PinnedCode, PinnedError, code_digest_of, offered, read_code
from troth.specs import file_of, parse_spec
from troth.training.fingerprint import code_digest
from troth.training.tasks import TASK_PLUGINS, TASKS

if TYPE_CHECKING:
    from troth.network.manifest.manifest import Manifest


_MOST_TRUSTED: Final = 1 << 20  # bytes of the file of what was agreed to
_MOST_PACKAGE_FILES: Final = 10_000
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CODE = (".py", ".so", ".pyd", ".pyc")
_CACHE = "__pycache__"  # what Python compiled, and looks at its source for each time …
_NOT_LOOKED_AT = 1  # … but where the flags of such a file say otherwise (PEP 552)

_agreed_here: set[str] = set()  # in this process: consent that could not be kept, or needs not be


@dataclass(frozen=True)
class TaskCode:
    """The code that making a manifest's task would run."""

    what: str  # for people, and safe to print
    files: tuple[CodeFile, ...]  # the first one is run, the others may be
    pinned: PinnedCode | None = None  # None: a package's, which Python imports from where it was installed

    @property
    def digest(self) -> str:
        """What a person agrees to: SHA-256 of the file, or of the list of all files."""
        return code_digest_of(self.files)


def code_to_run(manifest: "Manifest") -> TaskCode | None:
    """Code that is not part of Troth, read once and compared with what was agreed on; None for a built-in task."""
    name = file_of(manifest.task)
    if name is not None:
        return _read(manifest.folder, [(name, manifest.code), *manifest.code_files])
    name = parse_spec(manifest.task)[0]
    point = None if name in TASKS else offered(TASK_PLUGINS).get(name)
    return None if point is None else _of_package(name, point)


def relocated(manifest: "Manifest", file: Path) -> TaskCode:
    """The same code where a reader says that it lies; with the modules beside it, whatever folder the manifest puts it in."""
    name = file_of(manifest.task)
    root = Path(name or "").parent
    moved = [(Path(one).relative_to(root).as_posix(), digest) for one, digest in manifest.code_files]
    return _read(file.parent, [(file.name, manifest.code), *moved])


def _read(folder: Path, agreed: list[tuple[str, Digest]]) -> TaskCode:
    (file, _), *beside = agreed
    try:
        pinned, files = read_code(folder, file, [name for name, _ in beside])
    except PinnedError as error:
        raise ManifestError(f"task code: {error}; ask for the file and put it there") from error
    for found, (name, digest) in zip(files, agreed, strict=True):
        if found.digest != digest:
            path = printable(str(folder / name))
            raise ManifestError(
                f"task code: {path} is not the one agreed on ({differs(found.digest, digest)}); ask for the file and put it there"
            )
    return TaskCode(one_word(file), tuple(files), pinned)


def _of_package(name: str, point: EntryPoint) -> TaskCode:
    """All code of the installed package that offers a task. Nothing is imported: of a dotted name only the first part is looked
    up, since finding a module in a package runs the package."""
    top = point.module.partition(".")[0]
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not (spec.submodule_search_locations or os.path.isfile(spec.origin or "")):
        raise ManifestError(f"task '{printable(name)}': package {printable(top)} is not installed; ask what to install")
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    if folders:
        below = ((path.relative_to(folder.parent), path) for folder in folders for path in _code_below(folder))
        places = list(islice(below, _MOST_PACKAGE_FILES + 1))
    else:
        places = [(Path(Path(spec.origin or "").name), Path(spec.origin or ""))]
    if len(places) > _MOST_PACKAGE_FILES:
        raise ManifestError(
            f"task '{printable(name)}': package {printable(top)} has more than {_MOST_PACKAGE_FILES:,} files"
        )
    files = [
        CodeFile(printable(shown.as_posix()), path.stat().st_size, code_digest(path)) for shown, path in sorted(places)
    ]
    version = "" if point.dist is None else f" {point.dist.version}"
    package = top if point.dist is None else point.dist.name
    return TaskCode(printable(f"task '{name}' of the installed package {package}{version}"), tuple(files))


def _code_below(folder: Path) -> Iterator[Path]:
    """Files that Python would import, also through links to folders, and where there is no source that anybody could read."""
    seen: set[str] = set()
    for place, below, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(place)) in seen:  # links may lead in a circle
            below.clear()
            continue
        seen.add(real)
        below.sort()
        for path in (Path(place, name) for name in sorted(names)):
            if path.suffix in _CODE and path.is_file() and (path.parent.name != _CACHE or _is_run_unseen(path)):
                yield path


def _is_run_unseen(cached: Path) -> bool:
    with cached.open("rb") as file:
        return int.from_bytes(file.read(8)[4:], "little") == _NOT_LOOKED_AT


# Consent: what was agreed to, for this process or for good.

_WAY_OUT: Final = "It runs with all your rights, so read it, or ask whoever you trust for its SHA-256; to run it, say"


def consent(manifest: "Manifest", trust: str | None) -> TaskCode | None:
    """The code that nobody here has agreed to run yet, if there is any; with `trust`, its SHA-256, it is agreed to.

    Code that is missing, or is not what the members agreed on, is never run, so there is nothing to agree to."""
    given = None if trust is None else trust.strip().lower()
    if given is not None and not _SHA256.fullmatch(given):
        raise ConsentError(
            "`trust` takes the SHA-256 of the task's code, 64 hexadecimal digits: try without, and it is named"
        )
    try:
        code = code_to_run(manifest)
    except ManifestError:
        return None
    if code is None or is_trusted(code.digest):
        return None
    if given is None:
        return code
    if given != code.digest:
        raise ConsentError(
            f"`trust` names other code than this manifest: {_named(code)}. {_WAY_OUT} `trust` {code.digest}"
        )
    remember(code)
    return None


def require_consent(manifest: "Manifest", trust: str | None) -> None:
    """Raise `ConsentError` unless all code that the manifest's task runs was agreed to; with `trust`, it is."""
    if (code := consent(manifest, trust)) is not None:
        raise _refusal(code)


def check_consent(code: TaskCode) -> None:
    """Raise `ConsentError` if nobody here has agreed to run these bytes."""
    if not is_trusted(code.digest):
        raise _refusal(code)


def _refusal(code: TaskCode) -> ConsentError:
    return ConsentError(
        f"the manifest's task is a program that you have not agreed to run: {_named(code)}. {_WAY_OUT} `trust` {code.digest}"
    )


def _named(code: TaskCode) -> str:
    size = sum(file.size for file in code.files)
    more = f" in {len(code.files)} files" if len(code.files) > 1 else ""
    return f"{code.what} ({size:,} bytes{more})"


def is_trusted(digest: str) -> bool:
    return digest in _agreed_here or digest in _kept()


def agreed_here() -> tuple[str, ...]:
    """What was agreed to in this process: for processes that it starts itself."""
    return tuple(sorted(_agreed_here))


def agree_here(*digests: str) -> None:
    """Agree for this process alone: for code that its user named on the command line, or wrote."""
    _agreed_here.update(digests)


def remember(code: TaskCode) -> bool:
    """Agree to these bytes, for good; whether that could be written down."""
    agree_here(code.digest)
    path = trust_file()
    if path is None:
        return False
    try:
        if code.digest in _kept():
            return True
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "ab") as file:
            file.write(f"{code.digest}  {code.what}, {datetime.now(UTC):%Y-%m-%d}\n".encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        return False
    return True


def trust_file() -> Path | None:
    """The file of what this person has agreed to: `troth/trusted-code` in $XDG_CONFIG_HOME, or in ~/.config."""
    named = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        folder = Path(named) if os.path.isabs(named) else Path("~/.config").expanduser()
    except RuntimeError:  # a user without a home
        return None
    return folder / "troth" / "trusted-code"


def _kept() -> frozenset[str]:
    path = trust_file()
    if path is None:
        return frozenset()
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return frozenset()
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            return frozenset()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise OperatorError(
                f"{path} can be written by others than you, so it says nothing: chmod 600 it, or delete it"
            )
        lines = file.read(_MOST_TRUSTED).decode("utf-8", "replace").splitlines()
    return frozenset(line[:64] for line in lines if _SHA256.fullmatch(line[:64]) and line[64:65] in ("", " "))
