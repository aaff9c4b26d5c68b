"""Timeouts: within the run's bounds, they follow the times that members measure (SPEC Q8).

They are functions of announced numbers, so the same at every honest peer. Single correctly rounded operations only.
"""

import math
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from troth.crypto import PeerId, Slot
from troth.protocol.broadcast.announcement import Announcement, Timing
from troth.protocol.broadcast.observed import ObservedAnnouncement
from troth.protocol.core.channel import AttemptView
from troth.protocol.core.roster import lower_median
from troth.protocol.wire.messages import MOST_MILLISECONDS, Measured, Phase
from troth.protocol.wire.phases import PHASES

_STEPS = 16  # steps for which a measurement is announced: a step without disputes or audits says little


@dataclass(frozen=True)
class Timeouts:
    """Timeouts of a step or, as bounds of the run, the least that they may be; in seconds."""

    delta: float = 1.0  # for a frame between honest peers
    compute: float = 1.0  # for a gradient, an audit, a trial
    bulk: float = 1.0  # for blobs on their way
    memory: int = 1 << 28  # bytes: memory quota of one sender
    stretch: float = 1.0  # upper limit of the timeouts, as a multiple

    @property
    def exchange(self) -> float:
        """Time of an exchange of blobs: others begin up to delta later, and blobs travel for delta and bulk."""
        return 2 * self.delta + self.bulk

    @property
    def slowest(self) -> "Timeouts":
        """Timeouts until anything is measured: the most."""
        return self.after(())

    def after(self, took: Collection[Measured | None]) -> "Timeouts":
        """Timeouts of the next step, if these times are announced in this one: twice the lower median, within the bounds.

        Nothing measured counts as the most. Liars, fewer than half, cannot move the median beyond honest values.
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
        """Longest time of a step in which no member is late and nothing is disputed."""
        return self.compute + 3 * self.exchange + 10 * self.delta

    def until_left(self, majority: int) -> float:
        """Longest time that a member may stay in a step that the others have left: until its phase and the next one end,
        with one audit. Where everyone audits it may be longer, and such a member come back as if it had been away."""
        exchanges, computed = 3 * self.exchange, 2 * self.compute
        return 2 * (exchanges + computed + 6 * self.delta + 2 * self.delta * majority)

    def _within(self, least: float, milliseconds: list[float]) -> float:
        """Twice the lower median, in seconds, but never below the least: else liars that announce 0 could, with the quickest
        honest members, leave out the slower ones."""
        wanted = 2 * lower_median(milliseconds) / 1000 if milliseconds else math.inf
        return max(least, min(wanted, least * self.stretch))


class LatencyEstimator:
    """Times that one member measures; the longest of each kind counts (SPEC Q8)."""

    def __init__(self) -> None:
        self._steps: deque[Measured] = deque(maxlen=_STEPS)
        self._idle_since: float | None = None  # when this peer last stopped listening
        self._delay = self._compute = self._bulk = 0.0  # in this step

    def delayed(self, seconds: float) -> None:
        """Note the time from this peer's certificate, or view, until those of more than half were there."""
        self._delay = max(self._delay, seconds)

    def carried(self, seconds: float) -> None:
        """Note the time until more than half of the awaited blobs were here."""
        self._bulk = max(self._bulk, seconds)

    def left_link(self, now: float) -> None:
        self._idle_since = now

    def back_at_link(self, now: float, tasks: int) -> None:
        """Note the time since this peer stopped listening: it computed `tasks` gradients or audits, one after another."""
        if self._idle_since is not None:
            self._compute = max(self._compute, (now - self._idle_since) / max(1, tasks))

    def took(self) -> Measured | None:
        """Longest times of the last steps; None before the first has ended."""
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


class Pacing:
    """Timeouts of this step and the next, and deadlines, which count from the end of the last announcement."""

    def __init__(self, bounds: Timeouts) -> None:
        self.bounds = bounds
        self.timeouts = self.next_timeouts = bounds.slowest  # of this step, and from the next Commit on
        self.latency = LatencyEstimator()
        self._last: Announcement | ObservedAnnouncement | None = None
        self._resumed_at: float | None = None  # when the last rest ended, if nothing was announced since

    def begin_step(self) -> None:
        self.timeouts = self.next_timeouts

    def measured(self, told: Iterable[Measured | None]) -> None:
        """Set the timeouts of the next step from the times that Commits announced."""
        self.next_timeouts = self.bounds.after(list(told))

    def ended(self, announcement: Announcement | ObservedAnnouncement) -> None:
        self._last, self._resumed_at = announcement, None

    def resume(self, now: float) -> None:
        """Go on after a rest: the next announcement counts from here (SPEC G3)."""
        self._last, self._resumed_at = None, now

    def ended_at(self, now: float) -> float:
        """When the last announcement ended; now, if there was none."""
        return now if self._last is None or self._last.ends is None else self._last.ends

    def speak(self) -> None:
        """Go on as a member: others decided the last announcement up to delta earlier."""
        self.timeouts, self.latency = self.next_timeouts, LatencyEstimator()
        if isinstance(self._last, ObservedAnnouncement):
            self._last.bring_forward(self.timeouts.delta)

    def timing(self, slot: Slot, view: AttemptView, members: Iterable[PeerId], now: float) -> Timing:
        """Timing of an announcement that begins at the end of the last one."""
        since = self._last.ends if self._last is not None else self._resumed_at
        start = now if since is None else since
        here = set(members)
        relayed = any(peer in here and others & here for peer, others in view.disputed_links.items())
        return Timing(start, self._allowance(slot, view), self.timeouts.delta, relayed)

    def _allowance(self, slot: Slot, view: AttemptView) -> float:
        allowed, timeouts = PHASES[Phase(slot.phase)].allowance, self.timeouts
        computed = allowed.gradients + (max(1, allowed.audits * view.audits) if allowed.audits else 0)
        more_bulk = self.more_bulk(view) if allowed.disclosures else 0.0
        leaves = int(view.leaves and slot.phase == Phase.ACCUSE)
        return (
            allowed.deltas * timeouts.delta
            + (allowed.exchanges + leaves) * timeouts.exchange
            + more_bulk
            + timeouts.compute * computed
        )

    def more_bulk(self, view: AttemptView) -> float:
        """Extra time for disclosed parts beyond the first: a link that carries one in time does not carry all (SPEC V3)."""
        return self.timeouts.bulk * max(0, view.disputed - 1)

    def due(self, exchanges: int = 1) -> float:
        """Deadline of the first, second … exchange of blobs since the last announcement."""
        assert self._last is not None
        assert self._last.ends is not None, "blobs follow an announcement"
        return self._last.ends + exchanges * self.timeouts.exchange
