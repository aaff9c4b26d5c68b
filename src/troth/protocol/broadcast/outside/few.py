"""A few of those who ask in a step: drawn by a hash that nobody else can compute, so to ask first, or often, gains nothing."""

from collections.abc import ItemsView
from typing import Generic, TypeVar

from troth.crypto import PeerId, tagged_hash

V = TypeVar("V")


class FewOfMany(Generic[V]):
    """What some of those who asked want, until it is cleared; then the draw is another one."""

    def __init__(self, most: int, secret: bytes = b"") -> None:
        self._most = most
        self._secret = secret
        self._round = 0
        self._wants: dict[PeerId, V] = {}
        self._ranks: dict[PeerId, bytes] = {}  # of the same

    def admits(self, asker: PeerId) -> bool:
        """Whether it would be among them, as far as others have asked."""
        ranks = self._ranks
        return asker in ranks or len(ranks) < self._most or self.rank(asker) < max(ranks.values())

    def put(self, asker: PeerId, wanted: V) -> None:
        """Note what it wants, if it is among them; the last one in the draw makes room."""
        if self.admits(asker):
            self._wants[asker], self._ranks[asker] = wanted, self.rank(asker)
            if len(self._wants) > self._most:
                last = max(self._ranks, key=self._ranks.__getitem__)
                del self._wants[last], self._ranks[last]

    def rank(self, asker: PeerId) -> bytes:
        """Its place in this draw: the smallest ones are answered."""
        return tagged_hash("troth/few/1", self._secret, self._round.to_bytes(8, "big"), asker)

    def items(self) -> ItemsView[PeerId, V]:
        return self._wants.items()

    def clear(self) -> None:
        self._wants.clear()
        self._ranks.clear()
        self._round += 1

    def __len__(self) -> int:
        return len(self._wants)

    def __contains__(self, asker: PeerId) -> bool:
        return asker in self._wants
