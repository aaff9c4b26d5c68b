"""Chunks of a state that is being fetched, on disk: whoever is stopped half-way goes on from there (SPEC J1).

Chunk n lies at byte n·2²⁰ of one file, and the index beside it; both are named after the state's digest. Nothing here is
believed: each chunk that is read is checked against the index, and the index against the digest. So a torn file, or one that
somebody wrote into, costs chunks and nothing else.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from troth.crypto import CHUNK_BYTES, Digest
from troth.files import write_bytes

_MOST_INDEX_BYTES = 1 << 26  # of a state of two terabytes


class ChunkFiles:
    """The chunks of at most one state, in a folder of their own. A disk that is full costs the chunks, and not the download."""

    def __init__(self, folder: Path, note: Callable[[str], None] = lambda _text: None) -> None:
        self._folder = folder
        self._note = note
        self._keeps: Digest | None = None  # the state whose chunks are written
        self._file: int | None = None
        self.begun: Digest | None = next(map(_digest, sorted(folder.glob("*.index"))), None)

    def begin(self, digest: Digest, index: bytes) -> None:
        """Keep chunks of this state from here on, and drop those of others."""
        self.clear()
        try:
            self._folder.mkdir(exist_ok=True)
            write_bytes(self._path(digest, "index"), index)
            self._open(digest)
            self.begun = digest
        except OSError as error:
            self._give_up(error)

    def put(self, digest: Digest, number: int, chunk: memoryview) -> None:
        """Keep a chunk, if it is one of the state that was begun. Not synced: a power cut costs chunks."""
        if digest != self._keeps or self._file is None:
            return
        try:
            if os.pwrite(self._file, chunk, number * CHUNK_BYTES) != len(chunk):
                raise OSError(0, "no room")
        except OSError as error:
            self._give_up(error)

    def index(self, digest: Digest) -> bytes | None:
        """The index as it was kept; the chunks of that state are added to from here on."""
        path = self._path(digest, "index")
        try:
            if not path.exists() or path.stat().st_size > _MOST_INDEX_BYTES:
                return None
            raw = path.read_bytes()
            self._open(digest)
        except OSError:
            return None
        return raw

    def chunks(self, digest: Digest, lengths: Mapping[int, int]) -> Iterator[tuple[int, memoryview]]:
        """Bytes at the places of these chunks: right, wrong, or those of a chunk that never came."""
        if digest != self._keeps or self._file is None:
            return
        try:
            for number, length in lengths.items():
                yield number, memoryview(os.pread(self._file, min(length, CHUNK_BYTES), number * CHUNK_BYTES))
        except OSError:
            return

    def clear(self) -> None:
        """Delete everything: the state is whole and saved, or not wanted any more."""
        self._close()
        self.begun = None
        for path in (path for kind in ("index", "chunks", "partial") for path in self._folder.glob(f"*.{kind}")):
            with suppress(OSError):  # whoever cannot delete a file has one too many, and no other trouble
                path.unlink()

    def close(self) -> None:
        """Keep the chunks for another process."""
        self._close()

    def _open(self, digest: Digest) -> None:
        self._close()
        self._file = os.open(self._path(digest, "chunks"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._keeps = digest

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = self._keeps = None

    def _give_up(self, error: OSError) -> None:
        self._note(f"cannot keep the download in {self._folder}: {error.strerror}; it goes on, and is lost if stopped")
        self._close()

    def _path(self, digest: Digest, kind: str) -> Path:
        return self._folder / f"{digest.hex()}.{kind}"


def _digest(path: Path) -> Digest | None:
    """The state that a file is named after; None if its name is no digest."""
    try:
        digest = bytes.fromhex(path.stem)
    except ValueError:
        return None
    return Digest(digest) if len(digest) == 32 else None
