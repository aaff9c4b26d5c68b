"""Files that everybody needs beside the manifest, task code, data and initial state, and whether those here were agreed on."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from troth.crypto import Digest
from troth.evidence.file_format import MOST_BYTES, UnprovedError
from troth.evidence.verify_model import ModelProof, check_parameters, verify_state
from troth.protocol.wire.messages import Malformed
from troth.specs import file_of
from troth.training import Problem, Task, TaskError
from troth.training.fingerprint import code_digest, code_file, data_digest, file_digests
from troth.training.initial_state import InitialStateError, checked
from troth.training.work import Training, TrainingWork

if TYPE_CHECKING:
    from troth.network.manifest.manifest import Manifest


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


# The initial state of a run, if it is not made from a seed (`training.initial_state` makes it): it lies beside the manifest, in a
# file named after its digest.


def initial_state_file(folder: Path, digest: Digest) -> Path:
    return folder / f"initial-state-{digest.hex()[:16]}.safetensors"


def origin_file(folder: Path, digest: Digest) -> Path:
    """The signatures over a state that comes from another run."""
    return initial_state_file(folder, digest).with_suffix(".json")


def check_origin(folder: Path, digest: Digest, run: Digest, training: Training) -> ModelProof:
    """What proves that the initial state comes from that run: the file beside it, trusting nothing in it but signatures."""
    path = origin_file(folder, digest)
    try:
        with path.open(encoding="utf-8") as file:
            proof = verify_state(file.read(MOST_BYTES + 1), run)
        check_parameters(proof, training)
    except (OSError, UnicodeDecodeError) as error:
        raise InitialStateError(
            f"this run continues another, whose signatures are not here: get {path.name} from whoever sent the manifest, and put "
            "it beside it"
        ) from error
    except UnprovedError as error:
        raise InitialStateError(
            f"{path.name} does not prove that this run continues run {run.hex()[:16]}: {error}; ask whoever sent the manifest"
        ) from error
    return proof


def read_initial_state(work: TrainingWork, folder: Path, digest: Digest) -> Training:
    """The state that was agreed on, and no other."""
    path = initial_state_file(folder, digest)
    most = 64 * work.problem.size + (1 << 20)  # more than any optimizer holds for a parameter
    try:
        with path.open("rb") as file:
            raw = file.read(most + 1)
    except OSError as error:
        raise InitialStateError(
            f"this run begins from a state that is not here: get {path.name} from whoever sent the manifest, and put it beside it"
        ) from error
    training = work.unpack(raw) if len(raw) <= most else Malformed("too long")
    if isinstance(training, Malformed) or work.digest(training) != digest:
        raise InitialStateError(
            f"{path} is not the state that was agreed on: get it again from whoever sent the manifest"
        )
    return checked(work, training, path)


# Whether this machine trains what was agreed on: the same code, the same data, a model of the same size.

_MOST_NAMED = 4  # files in one message


def mismatches(manifest: "Manifest", task: Task, problem: Problem) -> list[str]:
    """Every difference from the manifest, one line each, with the way out; none if this machine may take part."""
    found: list[str] = []
    if wrong := code_mismatch(manifest, code_file(manifest.task, task, manifest.folder)):
        found.append(wrong)
    if problem.size != manifest.parameters.size:
        found.append(
            f"model size: {problem.size:,} parameters here, {manifest.parameters.size:,} agreed on; "
            "compare the task's code, its options and the version of PyTorch"
        )
    try:
        here = data_digest(task)
    except TaskError as error:
        found.append(f"data: {error}; {data_hint(manifest)}")
    else:
        if here != manifest.data:
            wrong = (
                _data_mismatch(manifest, task) or f"not the one agreed on ({differs(here, manifest.data, 'digest')})"
            )
            found.append(f"data: {wrong}; {data_hint(manifest)}")
    return found


def _data_mismatch(manifest: "Manifest", task: Task) -> str:
    """The data files that differ from those agreed on; empty if it is not the files, or if the manifest does not name them."""
    here, agreed = data_digests(task), manifest.data_files
    if len(here) != len(agreed):
        wanted = and_more([name for name, _ in agreed])
        return f"{len(here)} data files here, {len(agreed)} agreed on ({wanted})" if agreed else ""
    odd = [
        f"{file} is not {name} as agreed on ({differs(digest, right)})"
        for file, (_, digest), (name, right) in zip(data_files(task), here, agreed, strict=True)
        if digest != right
    ]
    if not odd and agreed:
        return "the files are those agreed on, but not the batches made from them: compare the versions of PyTorch and NumPy"
    return and_more(odd)


def and_more(names: Sequence[str]) -> str:
    """The first few of many."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def code_mismatch(manifest: "Manifest", file: Path) -> str | None:
    """How the file that defines the task differs from the one agreed on, with the way out; None if it does not."""
    try:
        here = code_digest(file)
    except TaskError as error:
        return f"task code: {error}; ask for the file and put it there"
    if here == manifest.code:
        return None
    remedy = (
        "ask for the file and put it there"
        if manifest.task_file is not None
        else "install the version of Troth that the manifest's first line names"
    )
    return f"task code: {file} is not the one agreed on ({differs(here, manifest.code)}); {remedy}"


def differs(here: bytes, agreed: bytes, what: str = "SHA-256") -> str:
    return f"{what} {here.hex()[:8]}… instead of {agreed.hex()[:8]}…"


def data_hint(manifest: "Manifest") -> str:
    """A way for people to get the data."""
    return f"the manifest says where to get it: {manifest.data_where}" if manifest.data_where else "ask for it"
