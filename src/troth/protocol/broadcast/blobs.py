"""Blobs by digest: those of a step, those of the last ones for whoever looks on, and who waits for which."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from troth.crypto import Digest, PeerId, Slot
from troth.protocol.broadcast.early_frames import MemoryQuota
from troth.protocol.wire.frames import BlobSent, Frame
from troth.protocol.wire.primitives import Primitives

_OLD_STEPS = 8  # whose blobs are kept while somebody looks on: slow lines take longer than quick steps
_OLD_BYTES = 1 << 26  # if they are small


@dataclass(frozen=True)
class _Held:
    blob: bytes
    sender: PeerId | None  # whose room it takes up; nobody's if it is this peer's own
    size: int  # of the packet that brought it


class Blobs:
    def __init__(self, send: Callable[[PeerId, Slot, Frame], None], tools: Primitives, room: MemoryQuota) -> None:
        self._send = send
        self._tools = tools
        self._quota = room
        self._here: dict[Digest, _Held] = {}
        self._older: list[dict[Digest, _Held]] = []  # the last step first
        self._asked: Counter[PeerId] = Counter()  # how often, in this step
        self._options: dict[Digest, set[PeerId]] = {}  # who asked for what is not here yet

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._here

    def __getitem__(self, digest: Digest) -> bytes:
        return self._here[digest].blob

    def __len__(self) -> int:
        return len(self._here)

    def put(self, slot: Slot, blob: bytes) -> None:
        """One's own."""
        self._hold(slot, self._tools.digest(blob), _Held(blob, None, 0))

    def put_from(self, sender: PeerId, slot: Slot, blob: bytes, size: int) -> None:
        """Somebody else's, if it has room: what is kept of it for onlookers goes first."""
        while not self._quota.has(sender, size):
            if not self._drop_oldest(sender):
                return
        digest = self._tools.digest(blob)
        if digest not in self._here and self._quota.take(sender, size):
            self._hold(slot, digest, _Held(blob, sender, size))

    def _hold(self, slot: Slot, digest: Digest, held: _Held) -> None:
        """Also for those who asked for it before it was here."""
        self._here.setdefault(digest, held)
        for peer in sorted(self._options.pop(digest, ())):
            self._send(peer, slot, BlobSent(held.blob))

    def hand_out(self, to: PeerId, slot: Slot, digest: Digest, *, most: int, may_come: bool) -> None:
        """Of this step or, to an onlooker, of the last ones; what is not here yet is sent when it comes."""
        self._asked[to] += 1
        if self._asked[to] > most:
            return
        held = next((blobs[digest] for blobs in (self._here, *self._older) if digest in blobs), None)
        if held is not None:
            self._send(to, slot, BlobSent(held.blob))
        elif may_come:
            self._options.setdefault(digest, set()).add(to)

    def next_step(self, *, watched: bool) -> None:
        most = _OLD_BYTES // (1 + sum(len(held.blob) for held in self._here.values())) if watched else 1
        keep = max(1, min(_OLD_STEPS, most))
        for blobs in [self._here, *self._older][keep:]:
            for held in blobs.values():
                self._let_go(held)
        self._older = [self._here, *self._older][:keep]
        self._here = {}
        self._options.clear()
        self._asked.clear()

    def _drop_oldest(self, of: PeerId) -> bool:
        """Of earlier steps; whether there was one."""
        for blobs in reversed(self._older):
            for digest, held in blobs.items():
                if held.sender == of:
                    del blobs[digest]
                    self._let_go(held)
                    return True
        return False

    def _let_go(self, held: _Held) -> None:
        if held.sender is not None:
            self._quota.give_back(held.sender, held.size)
