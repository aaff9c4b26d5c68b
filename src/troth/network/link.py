"""The protocol's end of the network: the time, a way to send, and the next packet that arrived.

The protocol has the main thread, and computes there for as long as it takes. Connections live in a thread of their own, so that
they are heard meanwhile.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from troth.crypto import PeerId
from troth.network.mesh import Inbox, Mesh
from troth.network.transport.base import Lane, Message
from troth.protocol.wire.frames import (
    BlobSent,
    BlobWanted,
    ChunkShown,
    ChunkWanted,
    HistoryWanted,
    Packet,
    PartSent,
    PartShown,
    StateIndex,
    StateWanted,
    SyncWanted,
    TipWanted,
    decode_packet,
    encode_in_pieces,
)
from troth.protocol.wire.messages import Malformed

_END_S = 2.0  # for tasks to end in
_BULK = (PartSent, BlobSent, PartShown, StateIndex, ChunkShown)
_ASKS = (SyncWanted, StateWanted, ChunkWanted, BlobWanted, HistoryWanted, TipWanted)  # members, for what may be long


class NetworkLink:
    """`protocol.broadcast.link.PacketLink` over a mesh that runs in a thread of its own. `receive` blocks the calling thread."""

    def __init__(self, make_mesh: Callable[[], Coroutine[Any, Any, Mesh]], inbox: Inbox, most_bytes: int) -> None:
        """Returns when others can connect; raises the error that prevents it."""
        self._make = make_mesh
        self._inbox = inbox
        self._most_bytes = most_bytes
        self._last: tuple[Packet, Message] | None = None  # the same packet often goes to everyone
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._outbox: deque[tuple[PeerId, Lane, Message, bool]] = deque()  # the last: whether the answer may be long
        self._waking = False
        self._started = threading.Event()
        self._failures: list[BaseException] = []
        self._main: asyncio.Task[None] | None = None
        self.mesh: Mesh
        self._thread.start()
        self._started.wait()
        if self._failures:
            self._thread.join()
            raise self._failures[0]

    def now(self) -> float:
        return time.monotonic()

    def gone(self) -> frozenset[PeerId]:
        """The peers that have disconnected, as the mesh sees it now."""
        return self.mesh.gone

    def send(self, to: PeerId, packet: Packet) -> None:
        if self._last is None or self._last[0] is not packet:
            self._last = packet, encode_in_pieces(packet)
        lane = Lane.BULK if isinstance(packet.frame, _BULK) else Lane.CONTROL
        self._outbox.append((to, lane, self._last[1], isinstance(packet.frame, _ASKS)))
        if not self._waking:  # one wake-up for many
            self._waking = True
            self._loop.call_soon_threadsafe(self._flush)

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        self._last = None  # it has gone to everyone by now, and may be large
        while (heard := self._inbox.get(until)) is not None:
            sender, raw = heard
            packet = decode_packet(raw, self._most_bytes)
            if not isinstance(packet, Malformed):
                return sender, packet
        return None

    def soon(self, call: Callable[[Mesh], None]) -> None:
        """Let the network's thread do this with the mesh, if it still runs: a peer whose network failed has its state to save all
        the same."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, self.mesh)

    def stop(self) -> None:
        """Stop, after sending everything that the others take soon."""
        if self._thread.is_alive() and self._main is not None:
            self._loop.call_soon_threadsafe(self._main.cancel)
            self._thread.join(timeout=10.0)

    def _flush(self) -> None:
        self._waking = False
        while self._outbox:
            to, lane, message, asks = self._outbox.popleft()
            self.mesh.post(to, lane, message, asks=asks)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._work())
        except BaseException as error:
            self._failures.append(error)
            self._inbox.fail(error)
        finally:
            self._started.set()
            self._end_tasks()
            self._loop.close()

    def _end_tasks(self) -> None:
        """Cancel what a library has left behind (hivemind its searches): tasks that are merely dropped complain on the screen."""
        if left := asyncio.all_tasks(self._loop):
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(left, timeout=_END_S))

    async def _work(self) -> None:
        self.mesh = await self._make()
        self._main = asyncio.get_running_loop().create_task(self.mesh.run())
        self._started.set()
        with suppress(asyncio.CancelledError):
            await self._main
