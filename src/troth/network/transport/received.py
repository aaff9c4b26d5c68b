"""Messages that a connection has received and nobody has taken yet."""

import asyncio
from collections import deque

from troth.network.transport.base import Lane, Received
from troth.network.transport.framing import MESSAGE_OVERHEAD


class ReceivedQueue:
    """Whole messages in order of arrival, for one reader at a time."""

    def __init__(self) -> None:
        self.bytes = 0  # with what it costs to keep them
        self._messages: deque[tuple[Lane, Received]] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._ended = False

    def put(self, lane: Lane, message: Received) -> None:
        self._messages.append((lane, message))
        self.bytes += len(message) + MESSAGE_OVERHEAD
        self._wake_reader()

    async def take(self) -> tuple[Lane, Received] | None:
        """The next message; None once the queue has ended and is empty. A cancelled call takes nothing."""
        while not self._messages:
            if self._ended:
                return None
            if self._reader is not None:
                raise RuntimeError("receive() has another caller")
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        lane, message = self._messages.popleft()
        self.bytes -= len(message) + MESSAGE_OVERHEAD
        return lane, message

    def end(self) -> None:
        """Nothing more will arrive; messages that are there can still be taken."""
        self._ended = True
        self._wake_reader()

    def clear(self) -> None:
        self._messages.clear()
        self.bytes = 0

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
