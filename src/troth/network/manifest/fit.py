"""Whether this machine trains what was agreed on: the same code, the same data, a model of the same size."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from troth.network.manifest.sending import data_digests, data_files
from troth.training import Problem, Task, TaskError
from troth.training.fingerprint import code_digest, code_file, data_digest

_MOST_NAMED = 4  # files in one message

if TYPE_CHECKING:
    from troth.network.manifest.manifest import Manifest


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
            digests = f"digest {here.hex()[:8]}… instead of {manifest.data.hex()[:8]}…"
            found.append(
                f"data: {_data_mismatch(manifest, task) or f'not the one agreed on ({digests})'}; {data_hint(manifest)}"
            )
    return found


def _data_mismatch(manifest: "Manifest", task: Task) -> str:
    """The data files that differ from those agreed on; empty if it is not the files, or if the manifest does not name them."""
    here, agreed = data_digests(task), manifest.data_files
    if len(here) != len(agreed):
        wanted = and_more([name for name, _ in agreed])
        return f"{len(here)} data files here, {len(agreed)} agreed on ({wanted})" if agreed else ""
    odd = [
        f"{file} is not {name} as agreed on (SHA-256 {digest.hex()[:8]}… instead of {right.hex()[:8]}…)"
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
    digests = f"SHA-256 {here.hex()[:8]}… instead of {manifest.code.hex()[:8]}…"
    return f"task code: {file} is not the one agreed on ({digests}); {remedy}"


def data_hint(manifest: "Manifest") -> str:
    """A way for people to get the data."""
    return f"the manifest says where to get it: {manifest.data_where}" if manifest.data_where else "ask for it"
