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
from troth.network.mesh.inbox import Inbox
from troth.network.mesh.mesh import Mesh
from troth.network.mesh.neighbour import Expected
from troth.network.mesh.session import Standing
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
Post = Callable[[PeerId, Lane, Message, bool], None]  # the last: whether it asks for an answer that may be long


class NetworkLink:
    """`protocol.broadcast.link.PacketLink` over a mesh in another thread. `receive` blocks the thread that calls it."""

    def __init__(
        self,
        post: Post,
        inbox: Inbox,
        most_bytes: int,
        gone: Callable[[], frozenset[PeerId]] = frozenset,
    ) -> None:
        self._post = post
        self.gone = gone
        self._inbox = inbox
        self._most_bytes = most_bytes
        self._last: tuple[Packet, Message] | None = None  # the same packet often goes to everyone

    def now(self) -> float:
        return time.monotonic()

    def send(self, to: PeerId, packet: Packet) -> None:
        if self._last is None or self._last[0] is not packet:
            self._last = packet, encode_in_pieces(packet)
        lane = Lane.BULK if isinstance(packet.frame, _BULK) else Lane.CONTROL
        self._post(to, lane, self._last[1], isinstance(packet.frame, _ASKS))

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        self._last = None  # it has gone to everyone by now, and may be large
        while (heard := self._inbox.get(until)) is not None:
            sender, raw = heard
            packet = decode_packet(raw, self._most_bytes)
            if not isinstance(packet, Malformed):
                return sender, packet
        return None


class NetworkThread:
    """Runs a mesh. Its methods may be called from any thread."""

    def __init__(self, mesh: Callable[[], Coroutine[Any, Any, Mesh]], inbox: Inbox) -> None:
        self._make = mesh
        self._inbox = inbox
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._outbox: deque[tuple[PeerId, Lane, Message, bool]] = deque()
        self._waking = False
        self._started = threading.Event()
        self._failed: BaseException | None = None
        self._main: asyncio.Task[None] | None = None
        self.mesh: Mesh

    def start(self) -> None:
        """Returns when others can connect; raises the error that prevents it."""
        self._thread.start()
        self._started.wait()
        if self._failed is not None:
            self._thread.join()
            raise self._failed

    def stop(self) -> None:
        """Stop, after sending everything that the others take soon."""
        if self._thread.is_alive() and self._main is not None:
            self._loop.call_soon_threadsafe(self._main.cancel)
            self._thread.join(timeout=10.0)

    def gone(self) -> frozenset[PeerId]:
        """The peers that have broken off, as the mesh sees it now."""
        return self.mesh.gone

    def post(self, to: PeerId, lane: Lane, message: Message, asks: bool) -> None:
        self._outbox.append((to, lane, message, asks))
        if not self._waking:  # one wake-up for many
            self._waking = True
            self._loop.call_soon_threadsafe(self._flush)

    def stand(self, standing: Standing) -> None:
        self._loop.call_soon_threadsafe(self.mesh.stand, standing)

    def expect(self, expected: Expected) -> None:
        self._loop.call_soon_threadsafe(self.mesh.expect, expected)

    def ask_whether_reached(self, address: str) -> None:
        self._loop.call_soon_threadsafe(self.mesh.ask_whether_reached, address)

    def leave(self) -> None:
        """Say goodbye, if the network still runs: a peer whose network failed has its state to save all the same."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.mesh.leave)

    def ban(self, banned: frozenset[PeerId]) -> None:
        self._loop.call_soon_threadsafe(self.mesh.ban, banned)

    def _flush(self) -> None:
        self._waking = False
        while self._outbox:
            to, lane, message, asks = self._outbox.popleft()
            self.mesh.post(to, lane, message, asks=asks)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._work())
        except BaseException as error:
            self._failed = error
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
