"""What a peer must not forget, or must forget: the slots that it has signed, since a power cut must not look like an equivocation
(SPEC B1), and the keys with which it signs records (SPEC U6)."""

import errno
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from troth.crypto import Identity, KeyFileError, PeerId, tagged_hash
from troth.files import sync_folder, write_bytes
from troth.network.disk.lock import DiskError, or_disk_error
from troth.protocol.broadcast.link import NO_SLOT, SignedSlots, SlotKey
from troth.protocol.core.records import RecordKeys
from troth.protocol.wire.frames import RestartCertificate

_WHOLE = re.compile(r"([0-9]+ ){4}[0-9a-f]{8}")
_BEGINNING = re.compile(r"([0-9]+ ){0,3}[0-9]*|([0-9]+ ){4}[0-9a-f]{0,8}")
_MOST_LINES = 4096  # then the file begins anew with the last line


class SignedSlotsFile(SignedSlots):
    """Signed slots in a file: a line for each slot, synced before anything is signed for it."""

    def __init__(self, path: Path, at_least: SlotKey = NO_SLOT) -> None:
        """`at_least` is the last slot at the last checkpoint: a file that ends earlier is an older copy."""
        super().__init__()
        self._path, self._begun_path = path, path.with_suffix(".begun")
        try:
            self._last = self._read()
        except ValueError as error:
            raise DiskError(f"{path} is damaged: move it away, and this peer comes back under a new key") from error
        except OSError as error:
            raise DiskError(f"cannot read {path}: {error.strerror}") from error
        if self._last < at_least:
            raise DiskError(
                f"{path} is older than the last checkpoint: put the newer one back, or move it away, and this peer comes back "
                "under a new key"
            )
        with or_disk_error(f"write {path}"):
            self._begin()

    def _read(self) -> SlotKey:
        *lines, torn = self._path.read_text(encoding="ascii").split("\n") if self._path.exists() else [""]
        return max((_parse(line) for line in [*lines, *_whole(torn)]), default=NO_SLOT)

    def _begin(self) -> None:
        """Replace the file, in one move, by one that holds the last slot only."""
        write_bytes(self._path, b"" if self._last == NO_SLOT else _line(self._last))
        self._lines = 0
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)

    def _keep(self, key: SlotKey) -> None:
        with or_disk_error(f"write {self._path}", "nothing is signed until it can"):
            if self._lines >= _MOST_LINES:
                full = self._file
                self._begin()
                os.close(full)
            line = _line(key)
            # A disk becomes full within a line: half of one would be forgotten after a restart, and its slot signed again.
            if (written := os.write(self._file, line)) < len(line):
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(self._file)
        self._lines += 1

    def begins(self, begun: RestartCertificate) -> None:
        with or_disk_error(f"write {self._begun_path}"):
            write_bytes(self._begun_path, msgspec.msgpack.encode(begun))

    @property
    def begun(self) -> RestartCertificate | None:
        try:
            return msgspec.msgpack.decode(self._begun_path.read_bytes(), type=RestartCertificate)
        except (OSError, ValueError):
            return None  # then this peer may have to observe for two steps

    def close(self) -> None:
        os.close(self._file)


def read_exactly(raw: bytes) -> list[SlotKey]:
    """The slots in a file, for people who check it: raises ValueError unless it is what is written there, in order.

    A line that a power cut tore is left out."""
    *lines, torn = raw.decode("ascii").split("\n")
    found = [_parse(line) for line in [*lines, *_whole(torn)]]
    written = b"".join(map(_line, found))
    if not (raw + b"\n").startswith(written) or sorted(set(found)) != found:
        raise ValueError("its slots are not written the one way they are written, each later than the one before")
    return found


def _line(key: SlotKey) -> bytes:
    """Incarnation, step, attempt, phase, and a checksum."""
    numbers = " ".join(map(str, key))
    return f"{numbers} {_checksum(numbers)}\n".encode()


def _checksum(numbers: str) -> str:
    """Finds accidents: a changed digit could let a slot be signed twice."""
    return tagged_hash("troth/slot/2", numbers.encode()).hex()[:8]


def _parse(line: str) -> SlotKey:
    numbers, _, checksum = line.rpartition(" ")
    incarnation, step, attempt, phase = map(int, numbers.split(" "))
    if checksum != _checksum(numbers):
        raise ValueError("the line was changed")
    return incarnation, step, attempt, phase


def _whole(torn: str) -> list[str]:
    """The last line without its newline, if it is whole otherwise: half a line was not signed. Anything else is damage."""
    torn = torn.rstrip("\0")  # a power cut may leave zeros
    if not _BEGINNING.fullmatch(torn):
        raise ValueError("not the beginning of a line")
    return [torn] if _WHOLE.fullmatch(torn) else []


# Record keys: a folder with one file for each, which is overwritten and removed once the key is old.
#
# A disk may keep copies of what was overwritten: a solid-state disk, a journalling file system, a backup. Against a thief who
# reads those, only an encrypted disk helps.

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
        with or_disk_error(f"write a key to {self._folder}"):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self._folder.parent)  # else a power cut takes the folder, and a key that others have heard of
            identity.save(self._folder / _PARTIAL)
            (self._folder / _PARTIAL).rename(path)
            sync_folder(self._folder)
        self._paths[identity.peer] = path

    def _drop(self, key: PeerId) -> None:
        erase(self._paths.pop(key))
        super()._drop(key)


def _numbered(folder: Path) -> list[Path]:
    """The keys in a folder, oldest first; without copies that people made, or one of those would be erased for the key."""
    return sorted(path for path in folder.glob("*.key") if path.stem.isdecimal())


def erase(path: Path) -> None:
    """Overwrite a file and remove it, if it is there."""
    way_out = "make the folder writable and join again"
    with or_disk_error(f"erase the old key {path}", way_out), suppress(FileNotFoundError):
        with path.open("rb+") as file:
            file.write(bytes(os.fstat(file.fileno()).st_size))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
        sync_folder(path.parent)


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
