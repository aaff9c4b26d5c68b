"""`troth.new`: write down what the members of a run agree on."""

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict, Unpack

from troth.errors import OperatorError, one_word
from troth.files import write_bytes, write_text
from troth.network.disk.chunks import proven_state
from troth.network.manifest.builder import (
    BuiltManifest,
    OnStage,
    Origin,
    build_manifest,
    options_from,
    silent,
    task_beside,
)
from troth.network.manifest.consent import code_to_run, remember
from troth.network.manifest.files import initial_state_file, origin_file
from troth.network.manifest.manifest import Founder, Manifest
from troth.network.manifest.options import ManifestOptions
from troth.specs import check_keywords

if TYPE_CHECKING:
    from troth.crypto import Identity, PeerId


class NewRunError(OperatorError):
    """A manifest that cannot be written as asked for; the message names the field and the way out."""


class NewOptions(TypedDict, total=False):
    """Choices of the person who writes the manifest. None, or left out: as in the run that is continued; else as the task
    suggests, as the protocol allows, or as measured."""

    name: str | None
    steps: int | None
    optimizer: str | None
    rate: float | None
    schedule: str
    warmup: int
    seed: int
    initial_state: Path | None  # a checkpoint, a peer's folder, or a model, to begin from
    continues: Path | None  # manifest of the run that it comes from: then its members' signatures go along
    byzantine: int | None
    validators: int
    projections: int
    tau: float | None
    tau_auto: float | None
    deviation: float | None
    beyond_guarantee: bool
    probation: int  # steps that strangers work before they are members, at least 6·n/(n − b); 0: the door is closed
    device: Literal["cpu", "cuda"]
    one_by_one: bool
    delta_s: float
    compute_s: float | None
    bulk_s: float | None
    stretch: float
    memory_bytes: int | None
    data_where: str | None


@check_keywords
def new(
    path: str | PathLike[str],
    task: str | None,
    founders: Sequence[str | Founder],
    *,
    overwrite: bool = False,
    **options: Unpack[NewOptions],
) -> Manifest:
    """Write the manifest of a new run to `path`, as `troth new` does, and return it.

    troth.new("run.toml", "digits", ["alice=alice.pub@10.0.0.1:7001", "bob=bob.pub@10.0.0.2:7001", …], steps=500)

    A founder is a `Founder`, or NAME=KEY@HOST:PORT with a public key in hexadecimal or in a file; the address may be
    missing for somebody who only dials out. `task` is a spec, `digits` or `my_task.py`, whose file has to lie in the
    folder of `path`: everybody needs both. None, with `continues`: that run's.
    """
    if not isinstance(task, str | None):
        raise NewRunError(
            f"`task` is a name, since all members need the same code: save {task!r} in a file beside {path}"
        )
    return write_new(Path(path), task, founders, options, overwrite=overwrite).manifest


def write_new(
    path: Path,
    task: str | None,
    founders: Sequence[str | Founder],
    given: NewOptions,
    *,
    overwrite: bool,
    on_stage: OnStage = silent,
) -> BuiltManifest:
    """Build a manifest, and write it with what has to lie beside it."""
    _check_free(path, overwrite=overwrite)
    named = [one if isinstance(one, Founder) else _founder(one) for one in founders]
    on_stage("reading the run that is continued")
    origin = _origin(given.get("continues"), given.get("initial_state"))
    options = ManifestOptions(**given) if origin is None else options_from(origin.manifest, given, len(named))
    task = task_beside(task, path.parent) if task is not None else _task_of(origin)
    built = build_manifest(task, named, options, path.parent, origin=origin, on_stage=on_stage)
    _write(path, built)
    if (code := code_to_run(built.manifest)) is not None:
        remember(code)  # its own user named it, and has run it here
    return built


def _origin(continues: Path | None, folder: Path | None) -> Origin | None:
    if continues is None:
        return None
    if folder is None or not folder.is_dir():
        raise NewRunError("`continues` needs `from`, with the folder of a member of that run")
    old = Manifest.load(continues)
    return Origin(old, *proven_state(folder, old.run))


def _task_of(origin: Origin | None) -> str:
    """The task of the run that is continued, if it comes with Troth: naming a program here is agreeing to run it."""
    if origin is None:
        raise NewRunError("`task`: name one, or a run that is continued")
    if code_to_run(origin.manifest) is not None:
        raise NewRunError(
            f"`task`: that run's is {one_word(origin.manifest.task)}, a program of its own: name it, if you agree to run it"
        )
    return origin.manifest.task


def _founder(given: str) -> Founder:
    """`alice=KEY@host:port`, where KEY is hexadecimal or a file, and the address may be missing."""
    name, equals, rest = given.partition("=")
    if not equals or not rest:
        raise NewRunError(f"`founder` takes NAME=KEY@HOST:PORT, got '{given}'")
    key, at, address = rest.rpartition("@") if "@" in rest else (rest, "", "")
    if at and not address:
        raise NewRunError(
            f"`founder` {name}: no HOST:PORT after the @; leave the @ out for somebody who only dials out"
        )
    public = load_public(key, f"`founder` {name}")
    return Founder(name, public.key, address, public.record_key)


def _check_free(path: Path, *, overwrite: bool) -> None:
    """Refuse a path that cannot be written to, before anything is computed."""
    if path.is_dir() or not path.parent.is_dir():
        raise NewRunError(f"cannot write {path}: name a file in a folder that exists")
    if path.exists() and not overwrite:
        raise NewRunError(f"{path} exists already: choose another name, or `overwrite` (it will be another run)")


def _write(path: Path, built: BuiltManifest) -> None:
    """Write the manifest, and beside it the initial state, if there is one."""
    try:
        if built.initial_state is not None and built.manifest.initial_state is not None:
            write_bytes(initial_state_file(path.parent, built.manifest.initial_state), built.initial_state)
            if built.origin is not None:
                write_text(origin_file(path.parent, built.manifest.initial_state), built.origin.proof)
        write_text(path, built.manifest.to_toml())
    except OSError as error:
        raise NewRunError(f"cannot write {path}: {error.strerror}; choose another place") from error


# Key files, as users name them: the private half to take part with, the public half to invite somebody.
#
# The command line imports this for `--help` too, so heavy imports happen inside functions.


_MOST_BYTES = 4096  # of a key file


class IdentityError(OperatorError):
    """A key that is not there, cannot be used, or is of the wrong kind; the message names the way out."""


class PublicKeys(NamedTuple):
    """What others need to know of somebody: written as KEY, or as KEY+RECORD_KEY."""

    key: "PeerId"
    record_key: "PeerId | None" = None  # with which it signs the first records of a run, and which it erases then

    def __str__(self) -> str:
        return self.key.hex() if self.record_key is None else f"{self.key.hex()}+{self.record_key.hex()}"


def load_identity(path: Path) -> "Identity":
    """The private key of a member."""
    from troth.crypto import Identity, KeyFileError

    content = read_key_file(path)
    if public_keys(content) is not None:
        raise IdentityError(f"{path} is a public key: name the private one, which 'troth key new' wrote beside it")
    if b"PRIVATE KEY" not in content:
        raise IdentityError(f"{path} holds no key: name the file that 'troth key new' wrote")
    try:
        return Identity.load(path)
    except KeyFileError as error:
        raise IdentityError(str(error)) from error


def load_public(given: str, whose: str) -> PublicKeys:
    """Public keys, given in hexadecimal or as a file; `whose` begins the error."""
    if (keys := public_keys(given.encode(errors="replace"))) is not None:
        return keys
    try:
        with Path(given).open("rb") as file:
            content = file.read(_MOST_BYTES)
    except (OSError, ValueError) as error:
        raise IdentityError(
            f"{whose}: '{given}' is neither a public key (64 hexadecimal digits) nor a file that can be read"
        ) from error
    if b"PRIVATE KEY" in content:
        raise IdentityError(f"{whose}: {given} is a private key, which stays at home; use its .pub file")
    keys = public_keys(content)
    if keys is None:
        raise IdentityError(f"{whose}: {given} holds no public key (64 hexadecimal digits): see 'troth key show'")
    return keys


def public_keys(content: bytes) -> PublicKeys | None:
    """The keys in a .pub file; None if it is something else."""
    from troth.crypto import PeerId

    found = re.fullmatch(rb"([0-9a-fA-F]{64})(?:\+([0-9a-fA-F]{64}))?\s*", content)
    if found is None:
        return None
    key, record_key = (None if part is None else PeerId(bytes.fromhex(part.decode())) for part in found.groups())
    assert key is not None
    return PublicKeys(key, record_key)


def public_path(path: Path) -> Path:
    """`me.key` has its public half in `me.pub`."""
    return path.with_suffix(".pub") if path.suffix == ".key" else path.with_name(path.name + ".pub")


def record_key_path(path: Path) -> Path:
    """`me.key` has the key for the first records of a run in `me.records.key`."""
    return path.with_suffix(".records.key") if path.suffix == ".key" else path.with_name(path.name + ".records.key")


def read_key_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES)
    except FileNotFoundError as error:
        raise IdentityError(f"no key at {path}: make one with 'troth key new {path}'") from error
    except OSError as error:
        raise IdentityError(f"cannot read {path}: {error.strerror}") from error
