"""How long things may take: within the run's bounds, and as long as the members measure that they do (SPEC Q8).

A function of announced numbers, so the same at every honest peer. Single correctly rounded operations only.
"""

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace

from troth.protocol.core.scales import lower_median
from troth.protocol.wire.messages import MOST_MILLISECONDS, Measured

_STEPS = 16  # that a measurement is announced for: a step without disputes or audits says little


@dataclass(frozen=True)
class Timeouts:
    """In seconds: what holds in a step or, as the run agrees on it, the least that may hold."""

    delta: float = 1.0  # for a frame between honest peers
    compute: float = 1.0  # for a gradient, an audit, a trial
    bulk: float = 1.0  # for blobs on their way
    room: int = 1 << 28  # bytes that one peer's blobs may take up here in a step
    stretch: float = 1.0  # so many times longer may they become

    @property
    def slowest(self) -> "Timeouts":
        """What holds until somebody has measured anything."""
        return self.after(())

    def after(self, took: Collection[Measured | None]) -> "Timeouts":
        """What holds in the next step, if these were announced in this one: twice the lower median, within these bounds.

        Nothing measured counts as the most. Liars, fewer than half, keep the median within what honest members announce.
        """
        return replace(
            self,
            delta=self._within(self.delta, [math.inf if one is None else one.delay for one in took]),
            compute=self._within(self.compute, [math.inf if one is None else one.compute for one in took]),
            bulk=self._within(self.bulk, [math.inf if one is None else one.bulk for one in took]),
            stretch=1.0,
        )

    @property
    def quiet_step(self) -> float:
        """How long a step may take in which nobody is late and nothing is disputed."""
        return self.compute + 3 * (2 * self.delta + self.bulk) + 10 * self.delta

    def until_left(self, majority: int) -> float:
        """How long somebody may be in a step that the others have left: what it is in ends, and then the next announcement."""
        exchanges = 3 * (2 * self.delta + self.bulk)
        return 2 * (exchanges + self.compute + 6 * self.delta + 2 * self.delta * majority)

    def _within(self, least: float, milliseconds: list[float]) -> float:
        """Never below the least: else liars who announce 0, with the quickest honest members, would leave out the slower."""
        wanted = 2 * lower_median(milliseconds) / 1000 if milliseconds else math.inf
        return max(least, min(wanted, least * self.stretch))


class LatencyEstimator:
    """What one member measures; the longest of each kind counts."""

    def __init__(self) -> None:
        self._steps: deque[Measured] = deque(maxlen=_STEPS)
        self._idle_since: float | None = None  # when the line was last left alone
        self._delay = self._compute = self._bulk = 0.0  # in this step

    def delayed(self, seconds: float) -> None:
        """So long after one's own, the certificates or views of more than half were there."""
        self._delay = max(self._delay, seconds)

    def carried(self, seconds: float) -> None:
        """More than half of some blobs were here after so long."""
        self._bulk = max(self._bulk, seconds)

    def left_link(self, now: float) -> None:
        self._idle_since = now

    def back_at_link(self, now: float, tasks: int) -> None:
        """It has computed meanwhile: one thing after another, so many."""
        if self._idle_since is not None:
            self._compute = max(self._compute, (now - self._idle_since) / max(1, tasks))

    def took(self) -> Measured | None:
        """In the last steps; None before the first has ended."""
        if not self._steps:
            return None
        return Measured(
            delay=max(step.delay for step in self._steps),
            compute=max(*(step.compute for step in self._steps), _milliseconds(self._compute)),
            bulk=max(step.bulk for step in self._steps),
        )

    def next_step(self) -> None:
        self._steps.append(Measured(*map(_milliseconds, (self._delay, self._compute, self._bulk))))
        self._delay = self._compute = self._bulk = 0.0


def _milliseconds(seconds: float) -> int:
    return min(math.ceil(1000 * seconds), MOST_MILLISECONDS)
