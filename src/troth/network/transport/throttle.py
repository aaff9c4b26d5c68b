"""A cap on outgoing bytes: a token bucket, and the order in which connections draw from it."""

import asyncio
from typing import Protocol

from troth.network.transport.base import Lane
from troth.network.transport.framing import CHUNK_BYTES

_BURST_S = 0.1


class TokenBucket:
    """Tokens are bytes. A sender that finds any may send a whole chunk; the debt is paid before the next one."""

    def __init__(self, bytes_per_second: float, now: float) -> None:
        self._rate = bytes_per_second
        self._depth = max(bytes_per_second * _BURST_S, CHUNK_BYTES)
        self._tokens = self._depth
        self._at = now

    def ready_in(self, now: float) -> float:
        """Seconds until something may be sent; 0: now."""
        self._tokens = min(self._depth, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return 0.0 if self._tokens > 0 else 1e-4 - self._tokens / self._rate

    def spend(self, count: int) -> None:
        self._tokens -= count


class Sender(Protocol):
    """The sending half of a connection."""

    def next_lane(self) -> Lane | None:
        """The lane that it would send on now; None if it has nothing to send, or its socket is full."""

    def send_chunk(self) -> int:
        """Send one chunk; the number of its bytes."""


class Throttle:
    """Connections take turns, one chunk each; those with control messages come before all others."""

    def __init__(self, bytes_per_second: float, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._bucket = TokenBucket(bytes_per_second, loop.time())
        self._waiting: dict[Lane, dict[Sender, None]] = {Lane.CONTROL: {}, Lane.BULK: {}}  # in order of arrival
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, sender: Sender) -> None:
        """Let a sender send: now if there are tokens, else when its turn comes."""
        self._enqueue(sender)
        if self._timer is None:
            self._serve()

    def spend(self, count: int) -> None:
        """Count bytes that left without asking (a ping)."""
        self._bucket.spend(count)

    def forget(self, sender: Sender) -> None:
        for senders in self._waiting.values():
            senders.pop(sender, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _enqueue(self, sender: Sender) -> None:
        lane = sender.next_lane()
        if lane is not None:
            self._waiting[lane].setdefault(sender)

    def _serve(self) -> None:
        self._timer = None
        while turns := self._waiting[Lane.CONTROL] or self._waiting[Lane.BULK]:
            wait = self._bucket.ready_in(self._loop.time())
            if wait > 0:
                self._timer = self._loop.call_later(wait, self._serve)
                return
            sender = next(iter(turns))
            del turns[sender]
            if sender.next_lane() is not None:
                self._bucket.spend(sender.send_chunk())
                self._enqueue(sender)
