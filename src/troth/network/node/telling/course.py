"""The course of a step as one member sees it: when each announcement ended, and for whom it had to wait."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from troth.crypto import PeerId, Slot
from troth.events.kinds import PhaseTime
from troth.protocol.wire.messages import Phase

_MOST = 64  # announcements of one step that are told: a step may have hundreds of attempts


@dataclass
class Course:
    """One step after another. `sample` comes from another thread; what it leaves is read when an announcement ends."""

    clock: Callable[[], float]
    silences: Counter[PeerId] = field(default_factory=Counter)  # announcements in which a member was not heard
    _began: float | None = None  # of this step
    _last_end: float = 0.0
    last: Counter[PeerId] = field(default_factory=Counter)  # announcements in which a member was heard last
    _waited_s: defaultdict[PeerId, float] = field(default_factory=lambda: defaultdict(float))  # in these, in all
    _waited: tuple[Slot, frozenset[PeerId], float] | None = None  # for these, in the latest sample; since when
    _phases: list[tuple[Slot, float, float, frozenset[PeerId]]] = field(default_factory=list)

    def begin(self) -> None:
        """A step begins, or the first one does."""
        self._began = self._last_end = self.clock()
        self._phases = []

    def sample(self, slot: Slot, unheard: frozenset[PeerId]) -> None:
        """Note for whom this peer waits now; called several times a second."""
        before = self._waited
        self._waited = (slot, unheard, before[2] if before is not None and before[0] == slot else self.clock())

    def announced(self, slot: Slot, heard: Iterable[PeerId], members: Iterable[PeerId]) -> None:
        """An announcement has ended with these voices."""
        now, waited, spoke = self.clock(), self._waited, frozenset(heard)
        self.silences.update(frozenset(members) - spoke)
        if self._began is None:
            self.begin()
        last, since = waited[1:] if waited is not None and waited[0] == slot else (frozenset[PeerId](), now)
        if len(last) < len(spoke) - 1:  # else nobody but this peer was earlier: it says nothing about the others
            for peer in last & spoke:
                self.last[peer] += 1
                self._waited_s[peer] += now - since
        if len(self._phases) < _MOST:
            self._phases.append((slot, self._last_end, now, last))
        self._last_end = now

    def late_s(self, peer: PeerId) -> float | None:
        """How long a member was waited for where it was heard last, on average."""
        return self._waited_s[peer] / times if (times := self.last[peer]) else None

    def phases(self, step: int, name: Callable[[PeerId], str]) -> tuple[PhaseTime, ...]:
        """Those of a step that has ended."""
        began = self._began or 0.0
        return tuple(
            PhaseTime(
                phase=Phase(slot.phase).name.lower(),
                began=round(start - began, 4),
                ended=round(end - began, 4),
                attempt=slot.attempt,
                last=tuple(map(name, sorted(last))),
            )
            for slot, start, end, last in self._phases
            if slot.step == step
        )
