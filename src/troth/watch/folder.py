"""What there is to watch in a run's folder: its events, its present, its evidence. Reads only, and follows no links there; the
folder itself, which a person named, may be a link."""

import os
import re
import time
from contextlib import ExitStack, suppress
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
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


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
            status = read_status(self.path, peer)
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
        for peer in ("", *self.peers()):
            file = _open_below(self.path, peer, "evidence", name, most=MOST_EVIDENCE)
            if file is not None:
                return file
        return None

    def peers(self) -> list[str]:
        """Names of a swarm's members, each of whom has a folder."""
        try:
            names = [one.name for one in os.scandir(self.path) if _PEER.fullmatch(one.name)]
        except OSError:
            return []
        return sorted(names, key=lambda name: int(name[4:]))


def read_status(folder: Path, peer: str = "") -> Status | None:
    """Of a run's folder, or of a peer in a swarm's. None if there is none, or none that can be read."""
    with suppress(EventError, OSError), _open_below(folder, peer, STATUS, most=MOST_STATUS) or BytesIO() as file:
        return decode_status(file.read(MOST_STATUS + 1))
    return None


def _witnesses(began: Began | None) -> list[str]:
    """Folders of the peers through whose eyes a swarm is seen, the first first."""
    if began is None or began.source != "swarm":
        return []
    names = dict.fromkeys([began.me, *(peer.name for peer in began.peers if not peer.liar)])
    return [name for name in names if _PEER.fullmatch(name)]


def _open_below(folder: Path, *way: str, most: int) -> BinaryIO | None:
    """A file below a folder, no larger than that. On the way, empty names aside, nothing may be a link: whoever may write there
    could point it at any files of this user's."""
    *between, name = filter(None, way)
    with ExitStack() as places:
        try:
            place = os.open(folder, _FOLDER)
            places.callback(os.close, place)
            for one in between:
                place = os.open(one, _FOLDER | os.O_NOFOLLOW, dir_fd=place)
                places.callback(os.close, place)
        except OSError:
            return None
        file = open_regular(name, folder=place)
    if file is None or os.fstat(file.fileno()).st_size <= most:
        return file
    file.close()
    return None
