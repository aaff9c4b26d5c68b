"""What there is to watch in a run's folder: its events, its present, its evidence. Reads only, and follows no links there."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from troth.events.file import MOST_STATUS, STATUS, EventError, decode_status
from troth.events.kinds import Began, Status
from troth.files import open_regular

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
        found = read_status(self.path)
        newest, now = float("-inf"), time.time()
        for peer in _witnesses(began) if found is None else ():
            status = read_status(self.path / peer)
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
            file = _open_in(folder / "evidence", name, MOST_EVIDENCE)
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


def read_status(folder: Path) -> Status | None:
    """None if there is none, or none that can be read."""
    with suppress(EventError, OSError), _open_in(folder, STATUS, MOST_STATUS) or BytesIO() as file:
        return decode_status(file.read(MOST_STATUS + 1))
    return None


def _witnesses(began: Began | None) -> list[str]:
    """Folders of the peers through whose eyes a swarm is seen, the first first."""
    if began is None or began.source != "swarm":
        return []
    names = dict.fromkeys([began.me, *(peer.name for peer in began.peers if not peer.liar)])
    return [name for name in names if _PEER.fullmatch(name)]


def _open_in(folder: Path, name: str, most: int) -> BinaryIO | None:
    """A file of a folder. The folder must not be a link either: its owner could point it at any files of this user's."""
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        file = open_regular(name, folder=place)
    finally:
        os.close(place)
    if file is None or os.fstat(file.fileno()).st_size <= most:
        return file
    file.close()
    return None
