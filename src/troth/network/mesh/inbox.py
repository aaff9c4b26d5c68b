"""Messages that have arrived: from the network's thread to the protocol's, bounded for each sender.

Senders take turns, so a peer that sends without end delays nobody else by more than one message at a time.
"""

import threading
import time
from collections import Counter, OrderedDict, deque

from troth.crypto import PeerId
from troth.network.transport.base import Received

_OVERHEAD = 256  # bytes that an empty message counts for


class StoppedError(Exception):
    """The operator asked this peer to stop."""


class Inbox:
    """A queue for each sender, in the order of arrival."""

    def __init__(self, room: int) -> None:
        self._room = room  # bytes that one sender may take up
        self._messages: OrderedDict[PeerId, deque[Received]] = OrderedDict()  # the next sender first
        self._taken: Counter[PeerId] = Counter()
        self._change = threading.Condition()
        self._failure: BaseException | None = None
        self._woken = False
        self._stop: Exception | None = None

    def put(self, sender: PeerId, message: Received, most: int | None = None) -> bool:
        """Add a message. False if this sender's room, or the `most` that it may have of it, is full: read no more from it until
        `has_room`."""
        with self._change:
            self._messages.setdefault(sender, deque()).append(message)
            self._taken[sender] += len(message) + _OVERHEAD
            self._change.notify()
            return self._taken[sender] < min(self._room, most or self._room)

    def has_room(self, sender: PeerId, most: int | None = None) -> bool:
        with self._change:
            return self._taken[sender] < min(self._room, most or self._room) // 2

    def fail(self, failure: BaseException) -> None:
        """Let the reader fail: nothing will arrive any more."""
        with self._change:
            self._failure = failure
            self._change.notify()

    def holds(self, sender: PeerId) -> bool:
        """Whether a message of this sender still waits to be taken."""
        with self._change:
            return sender in self._messages

    def stop(self, why: Exception) -> None:
        """Let the reader stop with this error, now or when it next comes here, whatever has arrived."""
        with self._change:
            self._stop = self._stop or why
            self._change.notify()

    def wake(self) -> None:
        """Let a reader that waits return None, so that it looks at what has changed."""
        with self._change:
            self._woken = True
            self._change.notify()

    def get(self, until: float) -> tuple[PeerId, Received] | None:
        """The next message; None if there is none until then, by the monotonic clock, or if the reader is woken."""
        with self._change:
            woken, self._woken = self._woken, False
            self._raise_stop()
            while not self._messages:
                if woken or self._woken:
                    self._woken = False
                    return None
                if self._failure is not None:
                    raise RuntimeError("the network stopped") from self._failure
                left = until - time.monotonic()
                if left <= 0:
                    return None
                self._change.wait(min(left, 3600.0))
                self._raise_stop()
            sender, waiting = self._messages.popitem(last=False)
            message = waiting.popleft()
            if waiting:
                self._messages[sender] = waiting  # behind the others
            self._taken[sender] -= len(message) + _OVERHEAD
            if not self._taken[sender]:
                del self._taken[sender]
            return sender, message

    def check(self) -> None:
        """Raise the error that stops the reader, if there is one."""
        with self._change:
            self._raise_stop()

    def _raise_stop(self) -> None:
        if self._stop is not None:
            raise self._stop
