"""One process for a folder, and one for a key in a run: locks that the system releases with the process, however it ends."""

import fcntl
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from troth.crypto import Digest, PeerId, tagged_hash
from troth.files import Lock
from troth.network.disk.errors import DiskError

_MOST_BYTES = 200  # of a lock file


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
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(handle)
    return False


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
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(handle, _MOST_BYTES).decode("ascii", "replace").strip()
        os.close(handle)
        return None, holder if holder.isprintable() and holder else "pid unknown"
    except OSError:  # a file system without locks
        return Lock(handle), ""
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
