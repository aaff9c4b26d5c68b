"""What has to lie beside a swarm's manifest, so that everybody can check its bans and its model: copies of what lay beside the
one that it rehearses."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from troth.files import write_bytes
from troth.network.manifest.consent import code_to_run
from troth.network.manifest.initial_state import initial_state_file, origin_file
from troth.network.manifest.manifest import Manifest
from troth.network.manifest.sending import data_files


def copy_companions(manifest: Manifest, out: Path) -> None:
    """Copy the task's code, its data files that lie beside the manifest, and the initial state."""
    code = code_to_run(manifest)
    if code is not None and code.pinned is not None:
        for file, content in zip(code.files, code.pinned.contents, strict=True):
            write_bytes(_place(out, Path(file.name)), content)
    for name in _beside(manifest):
        source, copy = manifest.folder / name, _place(out, name)
        if not (copy.exists() and copy.samefile(source)):
            copy.unlink(missing_ok=True)
            _copy(source, copy)


def _beside(manifest: Manifest) -> Iterator[Path]:
    """Names of files in the manifest's folder; what the task reads from elsewhere is found there again."""
    if manifest.task_file is not None:
        here = manifest.folder.resolve()
        places = [file.resolve() for file in data_files(manifest.make_task())]
        yield from (file.relative_to(here) for file in places if file.is_relative_to(here))
    if (digest := manifest.initial_state) is not None:
        yield initial_state_file(Path(), digest)
        if manifest.continues is not None:
            yield origin_file(Path(), digest)


def _place(out: Path, name: Path) -> Path:
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    return out / name


def _copy(source: Path, copy: Path) -> None:
    """A second name of the same file where the disk allows it: data may be large."""
    try:
        os.link(source, copy)
    except OSError:
        shutil.copy2(source, copy)
