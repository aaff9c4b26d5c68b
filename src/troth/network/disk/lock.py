"""What the files of a peer share: errors that name a way out, locks that go with the process, room on the disk."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from troth.crypto import Digest, PeerId, tagged_hash
from troth.errors import OperatorError
from troth.files import Lock, is_free
from troth.training.work import Training

_MOST_BYTES = 200  # of a lock file


class DiskError(OperatorError):
    """A file that cannot be used; the message names the way out.

    `wrong_folder`: another folder is the way out, and the message ends with asking for one. The command line adds the option.
    """

    def __init__(self, message: str, *, wrong_folder: bool = False) -> None:
        super().__init__(message)
        self.wrong_folder = wrong_folder


@contextmanager
def or_disk_error(doing: str, way_out: str = "make room there and join again") -> Iterator[None]:
    """Say what could not be done, and the way out, where the system refuses it."""
    try:
        yield
    except OSError as error:
        raise DiskError(f"cannot {doing}: {error.strerror}; {way_out}") from error


# Locks.


def lock_folder(folder: Path) -> Lock:
    """Raises `DiskError` if another process uses the folder: both would sign for one key."""
    lock, holder = _lock(folder / "lock")
    if lock is None:
        raise DiskError(f"another troth join ({holder}) uses {folder}: stop it, or choose another", wrong_folder=True)
    return lock


def is_in_use(folder: Path) -> bool:
    """Whether a process uses the folder; nothing in it is changed."""
    try:
        handle = os.open(folder / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not is_free(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def lock_key(run: Digest, key: PeerId) -> Lock | None:
    """Raises `DiskError` if another process of this user takes part in the run with this key, whatever folder it uses.

    Processes that share no place for temporary files are not found here; their peers find them.
    """
    name = tagged_hash("troth/key lock/1", run, key).hex()[:32]
    try:
        lock, holder = _lock(_private_folder() / f"{name}.lock")
    except OSError:
        return None
    if lock is None:
        raise DiskError(
            f"another troth join ({holder}) takes part in this run with this key: stop it first; two peers with one key "
            "contradict each other, and that is banned"
        )
    return lock


def _lock(path: Path) -> tuple[Lock | None, str]:
    """A lock on a file that tells people who holds it; or None, and who does."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if not is_free(handle, fcntl.LOCK_EX):
        holder = os.read(handle, _MOST_BYTES).decode("ascii", "replace").strip()
        os.close(handle)
        return None, holder if holder.isprintable() and holder else "pid unknown"
    os.ftruncate(handle, 0)
    os.write(handle, f"pid {os.getpid()}, since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC\n".encode())
    return Lock(handle), ""


def _private_folder() -> Path:
    """A folder of this user's own, emptied when the machine starts."""
    folder = Path(tempfile.gettempdir()) / f"troth-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or folder.is_symlink():
        raise PermissionError(f"{folder} is somebody else's")
    return folder


# Room on a disk for a peer's folder: asked for before anything is fetched, and not when the first checkpoint fails.


_AGGREGATES = 16  # of a large model, between two checkpoints
_REST = 1 << 26  # bytes, for journal, audit records, log and evidence


def least_room(training: Training, keep_checkpoints: int) -> int:
    """Bytes that a folder needs for this run: checkpoints, one more while it is written, aggregates, and the model at the end."""
    model = 4 * training.parameters_D.numel()
    state = sum(4 * vector.numel() for vector in training.vectors)
    return (keep_checkpoints + 1) * state + (_AGGREGATES + 1) * model + _REST


def check_room(folder: Path, needed: int) -> None:
    """Raises DiskError if the folder's disk has less than that free, beside what the folder holds already."""
    here = next(place for place in (folder, *folder.absolute().parents) if place.is_dir())
    held = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else 0
    free = shutil.disk_usage(here).free
    if free + held < needed:
        raise DiskError(
            f"too little room for {folder}: the model, checkpoints and aggregates of this run take {_gb(needed)}, and "
            f"{_gb(free + held)} are free; make room there, or choose a folder on another disk",
            wrong_folder=True,
        )


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def step_files(folder: Path, suffix: str) -> dict[int, Path]:
    """All files `step-N.suffix` of a folder by N, the oldest first. Files with other names are somebody else's."""
    found = {path.stem.removeprefix("step-"): path for path in folder.glob(f"step-*.{suffix}")}
    return {int(step): path for step, path in sorted(found.items()) if step.isascii() and step.isdecimal()}
