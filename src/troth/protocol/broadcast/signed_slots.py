"""What a peer must never forget: which slots it has signed (SPEC B1)."""

from typing import Protocol

from troth.crypto import Slot
from troth.protocol.core.errors import CannotGoOnError
from troth.protocol.wire.frames import RestartCertificate


class SignedBeforeError(CannotGoOnError):
    """This place, or a later one, was signed before: signing it again could look like a lie."""


SlotKey = tuple[int, int, int, int]
NO_SLOT: SlotKey = (0, -1, 0, 0)


def slot_key(slot: Slot) -> SlotKey:
    """In the order in which places follow each other. Incarnations come first: a run that begins anew may go back to an
    earlier step, and those who signed later ones before must be able to sign it."""
    return slot.incarnation, slot.step, slot.attempt, slot.phase


class SignedSlots(Protocol):
    def claim(self, slot: Slot) -> None:
        """To be called before anything is signed for this place, and to last before it returns. Raises SignedBeforeError."""
        ...

    def begins(self, begun: RestartCertificate) -> None:
        """What proves that an incarnation began lasts too: who was not there then would wait for it (SPEC B5)."""
        ...

    @property
    def begun(self) -> RestartCertificate | None:
        """The last of them."""
        ...

    @property
    def last_step(self) -> int:
        """The last step in which something was signed; -1 if there is none."""
        ...

    @property
    def last_incarnation(self) -> int:
        """The run's incarnation then."""
        ...


class SignedSlotsInMemory:
    """Lasts as long as the object does. Places follow each other, so the last one says it all."""

    def __init__(self) -> None:
        self._last = NO_SLOT
        self.begun: RestartCertificate | None = None

    def claim(self, slot: Slot) -> None:
        if (key := slot_key(slot)) <= self._last:
            raise SignedBeforeError(f"step {slot.step} was signed before")
        self._last = key

    def begins(self, begun: RestartCertificate) -> None:
        self.begun = begun

    @property
    def last_step(self) -> int:
        return self._last[1]

    @property
    def last_incarnation(self) -> int:
        return self._last[0]
