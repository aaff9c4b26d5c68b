"""Keys with which one peer signs records: a new one now and then, and old ones are erased (SPEC U6).

Whoever steals a machine, or what somebody left behind on one, finds no key that signed records of the past, and so can tell
nobody another history.
"""

from collections.abc import Callable, Collection, Iterable

from troth.crypto import Identity, PeerId, Signature
from troth.protocol.core.errors import CannotGoOnError


class LostKeyError(CannotGoOnError):
    """The key that this peer has to sign records with is not here."""


class RecordKeys:
    """The record keys of one peer, oldest first. The newest may not be in use yet."""

    def __init__(self, held: Iterable[Identity] = (), make: Callable[[], Identity] = Identity.generate) -> None:
        self._held = {identity.peer: identity for identity in held}
        self._make = make

    @property
    def held(self) -> tuple[PeerId, ...]:
        return tuple(self._held)

    def next(self, current: PeerId) -> PeerId:
        """A key to change to; the same one until it is in use."""
        newest = next(reversed(self._held), current)
        if newest == current:
            made = self._make()
            self._store(made)
            self._held[made.peer] = made
            newest = made.peer
        return newest

    def sign(self, key: PeerId, message: bytes) -> Signature:
        if key not in self._held:
            raise LostKeyError(
                f"the key {key.hex()[:8]}…, with which this peer signs records, is not here: its folder is an older copy. Move "
                "the folder away and join again: this peer comes back under a new key"
            )
        return self._held[key].sign(message)

    def keep(self, needed: Collection[PeerId]) -> None:
        """Erase all keys but these, and the newest."""
        for key in self.held[:-1]:
            if key not in needed:
                self._drop(key)

    def erase(self) -> None:
        """Erase all keys: the run is over."""
        for key in self.held:
            self._drop(key)

    # On disk

    def _store(self, identity: Identity) -> None:
        """Keep a new key before anybody hears of it."""

    def _drop(self, key: PeerId) -> None:
        """Leave no trace of a key."""
        del self._held[key]
