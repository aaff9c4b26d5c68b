"""What a peer must never forget: which slots it has signed (SPEC B1)."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from troth.crypto import Context
from troth.protocol.frames import Begun
from troth.protocol.state import CannotGoOnError


class SignedBeforeError(CannotGoOnError):
    """This place, or a later one, was signed before: signing it again could look like a lie."""


Slot = tuple[int, int, int, int]
_NONE: Slot = (-1, 0, 0, 0)
_STEPS = 256  # that are remembered: who has to go back to an old model goes back no further


def slot_of(place: Context) -> Slot:
    """In the order in which places of a step follow each other: a run that begins anew repeats a step, not an incarnation."""
    return place.step, place.incarnation, place.attempt, place.phase


class Signed:
    """The last place of each step, for the last steps in which something was signed. Before those, nothing is signed any more."""

    def __init__(self, slots: Iterable[Slot] = ()) -> None:
        self._last: dict[int, Slot] = {}
        for slot in slots:
            self.add(slot)

    def __iter__(self) -> Iterator[Slot]:
        return iter(sorted(self._last.values()))

    def free(self, place: Context) -> Slot:
        """Where it stands. Raises SignedBeforeError if this or a later one of its step was signed, or the step is forgotten."""
        slot = slot_of(place)
        if self._last and (place.step < min(self._last) or slot <= self._last.get(place.step, _NONE)):
            raise SignedBeforeError(f"step {place.step} was signed before")
        return slot

    def add(self, slot: Slot) -> None:
        self._last[slot[0]] = max(slot, self._last.get(slot[0], _NONE))
        if len(self._last) > _STEPS:
            del self._last[min(self._last)]

    @property
    def last_step(self) -> int:
        return max(self._last, default=-1)

    def incarnation_from(self, step: int) -> int:
        return max((slot[1] for slot in self._last.values() if slot[0] >= step), default=0)


class Journal(Protocol):
    def claim(self, place: Context) -> None:
        """To be called before anything is signed for this place, and to last before it returns. Raises SignedBeforeError."""
        ...

    def begins(self, begun: Begun) -> None:
        """What proves that an incarnation began lasts too: who was not there then would wait for it (SPEC B5)."""
        ...

    @property
    def begun(self) -> Begun | None:
        """The last of them."""
        ...

    @property
    def last_step(self) -> int:
        """The last step in which something was signed; -1 if there is none."""
        ...

    def incarnation_from(self, step: int) -> int:
        """The largest incarnation in which something was signed in this step or a later one; 0 if nothing was."""
        ...


class MemoryJournal:
    """Lasts as long as the object does."""

    def __init__(self) -> None:
        self._signed = Signed()
        self.begun: Begun | None = None

    def claim(self, place: Context) -> None:
        self._signed.add(self._signed.free(place))

    def begins(self, begun: Begun) -> None:
        self.begun = begun

    @property
    def last_step(self) -> int:
        return self._signed.last_step

    def incarnation_from(self, step: int) -> int:
        return self._signed.incarnation_from(step)
