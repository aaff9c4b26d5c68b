"""What there is to watch in a run's folder: its events, its present, its evidence. Reads only, and follows no links there."""

import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from troth.events.file import MOST_STATUS, STATUS, EventError, decode_status
from troth.events.kinds import Began, Status

MOST_EVIDENCE = 64 << 20  # bytes of a file that is handed out
EVIDENCE_NAME = re.compile(r"ban-step[0-9]+-[A-Za-z0-9._-]{1,40}\.json")
_NEWER_S = 10.0  # than that of a peer that has ended
_PEER = re.compile(r"peer[0-9]{1,4}")


@dataclass(frozen=True)
class RunFolder:
    """The folder of a member, a simulation or a swarm. A swarm's has its members' below it: peer0, peer1, …"""

    path: Path

    def status(self, began: Began | None) -> Status | None:
        """How the member does that tells the events; of a swarm, which has no status itself, the newest of the honest peers',
        and the first one's as long as that is about as new: another tells the events where that one has ended."""
        found = read_status(self.path / STATUS)
        newest, now = float("-inf"), time.time()
        for peer in _witnesses(began) if found is None else ():
            status = read_status(self.path / peer / STATUS)
            if status is None:
                continue
            at = status.at if status.at <= now + _NEWER_S else 0.0  # of a time to come: nobody knows how old it is
            if found is None or at > newest + _NEWER_S:
                found, newest = status, at
            if newest > now - _NEWER_S:
                break
        return found

    def evidence(self, name: str) -> BinaryIO | None:
        """A file of evidence, open; None if there is none, or if it is no ordinary file."""
        if EVIDENCE_NAME.fullmatch(name) is None:
            return None
        for folder in (self.path, *self.peers()):
            file = _open_regular(folder / "evidence", name, MOST_EVIDENCE)
            if file is not None:
                return file
        return None

    def peers(self) -> Iterator[Path]:
        """The folders of a swarm's members."""
        try:
            names = [one.name for one in os.scandir(self.path) if _PEER.fullmatch(one.name)]
        except OSError:
            return
        for name in sorted(names, key=lambda name: int(name[4:])):
            yield self.path / name


def read_status(path: Path) -> Status | None:
    """None if there is none, or none that can be read."""
    file = _open_regular(path.parent, path.name, MOST_STATUS)
    if file is None:
        return None
    with file:
        try:
            return decode_status(file.read(MOST_STATUS + 1))
        except (EventError, OSError):
            return None


def _witnesses(began: Began | None) -> list[str]:
    """Folders of the peers through whose eyes a swarm is seen, the first first."""
    if began is None or began.source != "swarm":
        return []
    names = dict.fromkeys([began.me, *(peer.name for peer in began.peers if not peer.liar)])
    return [name for name in names if _PEER.fullmatch(name)]


def _open_regular(folder: Path, name: str, most: int) -> BinaryIO | None:
    """Open a file of a folder. Links are not followed: whoever may write there could point them at any file of this user's."""
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # Not blocking: a pipe of that name would never be opened.
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
    except OSError:
        return None
    finally:
        os.close(place)
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode) and found.st_size <= most:
        return os.fdopen(handle, "rb")
    os.close(handle)
    return None
