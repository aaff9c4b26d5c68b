"""Record keys on disk: a folder with one file for each, which is overwritten and removed once the key is old (SPEC U6).

A disk may keep copies of what was overwritten: a solid-state disk, a journalling file system, a backup. Against a thief who reads
those, only an encrypted disk helps.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from troth.crypto import Identity, KeyFileError, PeerId
from troth.files import sync_folder
from troth.network.disk.errors import DiskError
from troth.protocol.core.record_keys import RecordKeys

_PARTIAL = "new.partial"


class RecordKeyFiles(RecordKeys):
    """The record keys of one peer in one run."""

    def __init__(self, folder: Path, first: Path | None = None) -> None:
        """`first`: the key file that a founder made for the beginning of this run."""
        self._folder = folder
        (folder / _PARTIAL).unlink(missing_ok=True)  # nobody has heard of that key
        found = [] if first is None else [first]
        paths = [path for path in (*found, *_numbered(folder)) if not finish_erasing(path)]
        held = dict(_read(paths))
        self._paths = {identity.peer: path for path, identity in held.items()}
        super().__init__(held.values())

    def _store(self, identity: Identity) -> None:
        names = [int(path.stem) for path in _numbered(self._folder)]
        path = self._folder / f"{max(names, default=0) + 1:09}.key"
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            sync_folder(
                self._folder.parent
            )  # else a power cut takes the folder along, and a key that others have heard of
            identity.save(self._folder / _PARTIAL)
            (self._folder / _PARTIAL).rename(path)
            sync_folder(self._folder)
        except OSError as error:
            raise DiskError(
                f"cannot write a key to {self._folder}: {error.strerror}; make room and join again"
            ) from error
        self._paths[identity.peer] = path

    def _drop(self, key: PeerId) -> None:
        erase(self._paths.pop(key))
        super()._drop(key)


def _numbered(folder: Path) -> list[Path]:
    """The keys in a folder, oldest first; without copies that people made, or one of those would be erased for the key."""
    return sorted(path for path in folder.glob("*.key") if path.stem.isdecimal())


def erase(path: Path) -> None:
    """Overwrite a file and remove it."""
    try:
        with path.open("rb+") as file:
            file.write(bytes(os.fstat(file.fileno()).st_size))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
        sync_folder(path.parent)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise DiskError(
            f"cannot erase the old key {path}: {error.strerror}; make the folder writable and join again"
        ) from error


def finish_erasing(path: Path) -> bool:
    """Remove a file that was overwritten when the power went; tell whether it was one. Its key is needed no more."""
    try:
        content = path.read_bytes()
    except OSError:
        return False  # whoever reads it says why not
    if not content or any(content):
        return False
    erase(path)
    return True


def _read(paths: Iterable[Path]) -> Iterable[tuple[Path, Identity]]:
    for path in paths:
        try:
            yield path, Identity.load(path)
        except KeyFileError as error:
            raise DiskError(
                f"{error}; it signs this run's records. Bring it back, or move the folder away and join again"
            ) from error
