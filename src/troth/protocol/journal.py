"""What a peer must never forget: which slots it has signed (SPEC B1)."""

from typing import Protocol

from troth.crypto import Context
from troth.protocol.state import CannotGoOnError


class SignedBeforeError(CannotGoOnError):
    """This place, or a later one, was signed before: signing it again could look like a lie."""


class Journal(Protocol):
    def claim(self, place: Context) -> None:
        """To be called before anything is signed for this place, and to last before it returns. Raises SignedBeforeError."""
        ...

    @property
    def last_step(self) -> int:
        """The last step in which something was signed; -1 if there is none."""
        ...


class MemoryJournal:
    """Lasts as long as the object does. Places follow each other, so the last one says it all."""

    def __init__(self) -> None:
        self._last = (-1, 0, 0)

    def claim(self, place: Context) -> None:
        if (slot := (place.step, place.attempt, place.phase)) <= self._last:
            raise SignedBeforeError(f"step {place.step} was signed before")
        self._last = slot

    @property
    def last_step(self) -> int:
        return self._last[0]
