"""Blobs by digest: those of a step, those of the last ones for whoever looks on, and who waits for which."""

from collections import Counter
from collections.abc import Callable

from troth.crypto import Context, Digest, PeerId
from troth.protocol.frames import BlobSent, Frame
from troth.protocol.primitives import Primitives

_OLD_STEPS = 8  # whose blobs are kept while somebody looks on: slow lines take longer than quick steps
_OLD_BYTES = 1 << 26  # if they are small


class Blobs:
    def __init__(self, send: Callable[[PeerId, Context, Frame], None], tools: Primitives) -> None:
        self._send = send
        self._tools = tools
        self._here: dict[Digest, bytes] = {}
        self._older: list[dict[Digest, bytes]] = []
        self._asked: Counter[PeerId] = Counter()  # how often, in this step
        self._wishes: dict[Digest, set[PeerId]] = {}  # who asked for what is not here yet

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._here

    def __getitem__(self, digest: Digest) -> bytes:
        return self._here[digest]

    def __len__(self) -> int:
        return len(self._here)

    def put(self, place: Context, blob: bytes) -> None:
        """Also to those who asked for it before it was here."""
        digest = self._tools.digest(blob)
        self._here.setdefault(digest, blob)
        for peer in sorted(self._wishes.pop(digest, ())):
            self._send(peer, place, BlobSent(blob))

    def hand_out(self, to: PeerId, place: Context, digest: Digest, *, most: int, may_come: bool) -> None:
        """Of this step or, to an onlooker, of the last ones; what is not here yet is sent when it comes."""
        self._asked[to] += 1
        if self._asked[to] > most:
            return
        held = next((blobs[digest] for blobs in (self._here, *self._older) if digest in blobs), None)
        if held is not None:
            self._send(to, place, BlobSent(held))
        elif may_come:
            self._wishes.setdefault(digest, set()).add(to)

    def next_step(self, *, watched: bool) -> None:
        most = _OLD_BYTES // (1 + sum(map(len, self._here.values()))) if watched else 1
        self._older = [self._here, *self._older][: max(1, min(_OLD_STEPS, most))]
        self._here = {}
        self._wishes.clear()
        self._asked.clear()
