"""Virtual time: peers as coroutines, packets as events, one seed for everything that chance decides.

Nothing runs in parallel and nothing reads a clock, so equal seeds give equal traces, byte for byte.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, TypeVar

from troth.crypto import Digest, PeerId, Slot
from troth.protocol.core.run import CannotGoOnError
from troth.protocol.wire.frames import Packet, View
from troth.workshop.chaos.plan import Deliver

R = TypeVar("R")
_SILENCE = 7200.0  # seconds without a packet after which nothing will happen any more: all who are left rest (SPEC G3)
Watch = Callable[[float, PeerId, PeerId, Packet, Sequence[float]], None]  # now, sender, receiver, packet, delays


@dataclass
class _Wait:
    """Request that a coroutine yields: the next packet, or None at that time. While busy, packets wait; off, they are lost."""

    until: float
    busy: bool = False
    off: bool = False

    def __await__(self) -> Generator["_Wait", Any, Any]:
        return (yield self)


# Stands for the end of a connection, and for a new one.
_CLOSING = Packet(Slot(Digest(bytes(32)), 0, 1), View(None, bytes(64)))


@dataclass(frozen=True)
class _Notice:
    """News that a peer's machine stopped or started again: its connections are closed, or back."""

    peer: PeerId
    number: int  # the highest counts
    stopped: bool


@dataclass
class _Node:
    coroutine: Coroutine[Any, Any, Any]
    stops: int = 0  # stops and starts so far
    notices: dict[PeerId, _Notice] = field(default_factory=dict)
    inbox: deque[tuple[PeerId, Packet]] = field(default_factory=deque)
    waiting: _Wait | None = None
    timers: set[float] = field(default_factory=set)  # already set: most waits end early, and repeat


class VirtualTime(Generic[R]):
    """Runs coroutines against a network model until all of them have ended."""

    def __init__(self, deliver: Deliver, watch: Watch | None = None) -> None:
        self._deliver = deliver
        self._watch = watch
        self._events: list[tuple[float, int, PeerId, tuple[PeerId, Packet] | _Notice | None]] = []  # None is a timer
        self._order = count()
        self._nodes: dict[PeerId, _Node] = {}
        self._pending: set[PeerId] = set()  # peers that have to end before it is over
        self._homes: dict[PeerId, PeerId] = {}  # first key of the coroutine that gets packets for a key
        self.now = 0.0
        self.packets = self.lost = self.duplicated = 0
        self._sent_at = 0.0  # when the last packet was sent
        self.results: dict[PeerId, R] = {}
        self.stopped: dict[PeerId, CannotGoOnError] = {}

    def link(self, peer: PeerId, ahead: float = 0.0, faster: float = 0.0, home: PeerId | None = None) -> "VirtualLink":
        """A peer's end of the network. `home` is the coroutine's first key, if this is a later one."""
        self._homes[peer] = home or peer
        return VirtualLink(self, peer, ahead, 1.0 + faster)

    def send(self, sender: PeerId, to: PeerId, packet: Packet) -> None:
        self.packets += 1
        self._sent_at = self.now
        delays = self._deliver(sender, to, packet, self.now)
        self.lost += not delays
        self.duplicated += len(delays) > 1
        if self._watch is not None:
            self._watch(self.now, sender, to, packet, delays)
        for delay in delays:
            home = self._homes.get(to, to)
            heapq.heappush(self._events, (self.now + delay, next(self._order), home, (sender, packet)))

    def run(
        self, coroutines: Mapping[PeerId, Coroutine[Any, Any, R]], *, most_events: int, until: Collection[PeerId] = ()
    ) -> None:
        """Start all coroutines and advance the clock from event to event, until those in `until` (default: all) have ended, or
        nobody has said anything for two hours.

        More events than allowed are a bug: the run does not end.
        """
        self._nodes = {peer: _Node(coroutine) for peer, coroutine in coroutines.items()}
        self._pending = set(until or coroutines)
        try:
            for peer in self._nodes:
                self._advance(peer, None)
            handled = 0
            while self._events and self._pending and self.now < self._sent_at + _SILENCE:
                handled += 1
                assert handled <= most_events, f"more than {most_events} events: this does not end"
                self.now, _, peer, what = heapq.heappop(self._events)
                self._handle(peer, what)
        finally:
            for node in self._nodes.values():
                node.coroutine.close()

    def gone(self, sight_of: PeerId) -> frozenset[PeerId]:
        """Peers whose connections are closed, as far as `sight_of` has noticed, once all that they sent is taken."""
        node = self._nodes[self._homes.get(sight_of, sight_of)]
        if not node.notices:
            return frozenset()
        stopped = {peer for peer, notice in node.notices.items() if notice.stopped}
        untaken = {sender for sender, _ in node.inbox}
        return frozenset(peer for peer, home in self._homes.items() if home in stopped and peer not in untaken)

    def _tell_others(self, peer: PeerId, *, stopped: bool) -> None:
        """Send notices, which arrive after a link's delay, where a packet would arrive."""
        node = self._nodes[peer]
        if (node.stops % 2 == 1) == stopped:
            return
        node.stops += 1
        for other in [other for other in self._nodes if other != peer]:
            for delay in self._deliver(peer, other, _CLOSING, self.now)[:1]:
                notice = _Notice(peer, node.stops, stopped)
                heapq.heappush(self._events, (self.now + delay, next(self._order), other, notice))

    def _notice(self, node: _Node, notice: _Notice) -> bool:
        """Take a notice in; return whether it is news."""
        known = node.notices.get(notice.peer)
        if known is not None and known.number > notice.number:
            return False
        node.notices[notice.peer] = notice
        return True

    def _handle(self, peer: PeerId, what: tuple[PeerId, Packet] | _Notice | None) -> None:
        node = self._nodes.get(peer)
        if isinstance(what, _Notice) and node is not None:
            if self._notice(node, what) and node.waiting is not None and not (node.waiting.busy or node.waiting.off):
                self._advance(peer, None)
            return
        if node is None or node.waiting is None or isinstance(what, _Notice):
            return
        if what is None:
            node.timers.discard(self.now)
            if node.waiting.until <= self.now:
                self._advance(peer, None)
        elif node.waiting.busy:
            node.inbox.append(what)
        elif not node.waiting.off:
            self._advance(peer, what)

    def _advance(self, peer: PeerId, value: tuple[PeerId, Packet] | None) -> None:
        node = self._nodes[peer]
        while True:
            node.waiting = None
            try:
                wait = node.coroutine.send(value)
            except StopIteration as stop:
                self.results[peer] = stop.value
                self._pending.discard(peer)
                return
            except CannotGoOnError as why:
                self.stopped[peer] = why
                self._pending.discard(peer)
                self._tell_others(peer, stopped=True)
                return
            assert isinstance(wait, _Wait)
            self._tell_others(peer, stopped=wait.off)
            if wait.off:
                node.inbox.clear()
            if node.inbox and not wait.busy:
                value = node.inbox.popleft()
                continue
            if wait.until <= self.now:
                value = None
                continue
            node.waiting = wait
            if wait.until not in node.timers:
                node.timers.add(wait.until)
                heapq.heappush(self._events, (wait.until, next(self._order), peer, None))
            return


class VirtualLink:
    """One peer's end of the network, with its own clock."""

    def __init__(self, time: VirtualTime[Any], me: PeerId, ahead: float, rate: float) -> None:
        self._time = time
        self._me = me
        self._ahead = ahead
        self._rate = rate
        self._breaks: tuple[float, CannotGoOnError] | None = None  # time and error

    def now(self) -> float:
        return self._ahead + self._time.now * self._rate

    def send(self, to: PeerId, packet: Packet) -> None:
        self._break_if_due()
        self._time.send(self._me, to, packet)

    def gone(self) -> frozenset[PeerId]:
        return self._time.gone(self._me)

    def break_in(self, seconds: float, error: CannotGoOnError) -> None:
        """After so many seconds, the peer's next use of the link raises this error, once. The first call counts."""
        if self._breaks is None:
            self._breaks = self._time.now + seconds, error

    def _break_if_due(self) -> None:
        if self._breaks is not None and self._time.now >= self._breaks[0]:
            _, error = self._breaks
            self._breaks = None
            raise error

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        moment = (until - self._ahead) / self._rate
        while self._ahead + moment * self._rate < until:  # else rounding could wake it before its clock says so
            moment = math.nextafter(moment, math.inf)
        heard: tuple[PeerId, Packet] | None = await _Wait(
            moment if self._breaks is None else min(moment, self._breaks[0])
        )
        self._break_if_due()
        return heard

    async def work(self, seconds: float) -> None:
        """Compute for so long; packets that arrive meanwhile wait."""
        await _Wait(self._time.now + seconds, busy=True)

    async def off(self, seconds: float) -> None:
        """Stay without power for so long; packets that arrive meanwhile, or wait, are lost."""
        await _Wait(self._time.now + seconds, off=True)
