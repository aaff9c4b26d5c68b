"""Messages that have arrived: from the network's thread to the protocol's, bounded for each sender.

Senders take turns, so a peer that sends without end delays nobody else by more than one message at a time. Those that are known
go first; of strangers one message is taken after so many of theirs, so that nobody waits for ever (SPEC M4).
"""

import threading
import time
from collections import Counter, OrderedDict, deque

from troth.crypto import PeerId
from troth.network.transport.base import Received

_OVERHEAD = 256  # bytes that an empty message counts for
_OF_KNOWN = 16  # messages in a row while strangers wait
_Queues = OrderedDict[PeerId, deque[Received]]


class StoppedError(Exception):
    """The operator asked this peer to stop."""


class Inbox:
    """A queue for each sender, in the order of arrival."""

    def __init__(self, room: int) -> None:
        self._room = room  # bytes that one sender may take up
        self._known: _Queues = OrderedDict()  # the next sender first
        self._strangers: _Queues = OrderedDict()
        self._in_a_row = 0  # messages of the known, since one of a stranger
        self._taken: Counter[PeerId] = Counter()
        self._change = threading.Condition()
        self._failure: BaseException | None = None
        self._woken = False
        self._stop: Exception | None = None

    def put(self, sender: PeerId, message: Received, most: int | None = None) -> bool:
        """Add a message. False if this sender's room, or the `most` that a stranger may have of it, is full: read no more from it
        until `has_room`."""
        with self._change:
            here, there = (self._known, self._strangers) if most is None else (self._strangers, self._known)
            if sender in there:  # it has become known, or a stranger; the order of its messages stays
                here[sender] = there.pop(sender)
            here.setdefault(sender, deque()).append(message)
            self._taken[sender] += len(message) + _OVERHEAD
            self._change.notify()
            return self._taken[sender] < min(self._room, most or self._room)

    def has_room(self, sender: PeerId, most: int | None = None) -> bool:
        with self._change:
            return self._taken[sender] < min(self._room, most or self._room) // 2

    def drop(self, sender: PeerId) -> None:
        """Forget the messages of this sender."""
        with self._change:
            for queues in (self._known, self._strangers):
                queues.pop(sender, None)
            del self._taken[sender]

    def fail(self, failure: BaseException) -> None:
        """Let the reader fail: nothing will arrive any more."""
        with self._change:
            self._failure = failure
            self._change.notify()

    def holds(self, sender: PeerId) -> bool:
        """Whether a message of this sender still waits to be taken."""
        with self._change:
            return sender in self._known or sender in self._strangers

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
            while not (self._known or self._strangers):
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
            queues = self._next_queues()
            sender, waiting = queues.popitem(last=False)
            message = waiting.popleft()
            if waiting:
                queues[sender] = waiting  # behind the others
            self._taken[sender] -= len(message) + _OVERHEAD
            if not self._taken[sender]:
                del self._taken[sender]
            return sender, message

    def _next_queues(self) -> _Queues:
        if self._known and (not self._strangers or self._in_a_row < _OF_KNOWN):
            self._in_a_row += 1
            return self._known
        self._in_a_row = 0
        return self._strangers

    def check(self) -> None:
        """Raise the error that stops the reader, if there is one."""
        with self._change:
            self._raise_stop()

    def _raise_stop(self) -> None:
        if self._stop is not None:
            raise self._stop
