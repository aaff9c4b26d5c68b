"""How a run gets on: since when its model has not moved, how long a step usually takes, and how long is left."""

from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from statistics import median

from troth.events.kinds import Stepped

_STEPS = 20  # that count


class Progress:
    """Takes steps as they end, after those that were told before this peer came back."""

    def __init__(self, before: Iterable[Stepped], now: float) -> None:
        self.moved_at = now  # Unix time of the last step that moved the model; of the beginning, if there is none
        self._ends: deque[tuple[float, bool]] = deque(
            maxlen=_STEPS + 1
        )  # Unix time of a step's end, and whether it moved
        for event in before:
            self.stepped(event)

    def stepped(self, event: Stepped) -> None:
        if event.at is not None:
            self._ends.append((event.at, event.moved))
            if event.moved:
                self.moved_at = event.at

    @property
    def usual_s(self) -> float | None:
        """Time from update to update, pauses aside; None before there are two. The median: one long wait says nothing about
        the next."""
        gaps = [there - here for (here, _), (there, moved) in pairwise(self._ends) if moved and there >= here]
        return median(gaps) if gaps else None

    def left_s(self, updates: int) -> float | None:
        """Estimated time for so many more updates."""
        usual = self.usual_s
        return None if usual is None else usual * updates
