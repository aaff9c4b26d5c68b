"""`troth.new`: write down what the members of a run agree on."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from troth.api.keys import load_public
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
    local_steps: int
    outer: float
    seed: int
    initial_state: Path | None  # a checkpoint, a peer's folder, or a model, to begin from
    continues: Path | None  # manifest of the run that it comes from: then its members' signatures go along
    byzantine: int | None
    validators: int
    projections: int
    tau: float | None
    tau_auto: float | None
    deviation: float | None
    code: Literal["float32", "int8"]  # what gradients and aggregates travel as
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
