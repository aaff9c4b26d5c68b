"""One connection to every member, kept up: greeted, dialled again when it is lost, one for each pair.

Everything here runs in the network's event loop. `link.NetworkLink` is the end of it for the protocol's thread.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping

from troth.crypto import PeerId
from troth.network.mesh.greeting import check_greeting
from troth.network.mesh.inbox import Inbox
from troth.network.mesh.neighbour import Neighbour
from troth.network.mesh.refusals import Refusals
from troth.network.mesh.session import (
    CONTROL_PACKET,
    CONTROL_SESSION,
    NOWHERE,
    Hello,
    Refused,
    SessionMessage,
    Standing,
    decode_session_message,
    encode_session_message,
)
from troth.network.transport.base import Connection, Lane, Transport, UnreachableError

_GREETING_S = 5.0
_YIELDING_S = 3.0  # when a connection is lost the smaller key dials at once, the larger only after this
_YIELDING_AT_FIRST_S = 0.3  # others may have given up for a while on a peer that was away
_FIRST_RETRY_S, _LAST_RETRY_S = 0.2, 10.0
_REFUSED_RETRY_S = 5.0  # somebody may mend it there
_LOOK_EVERY_S = 0.05
_MOST_UNGREETED = 64


class Mesh:
    """The connections of one peer, whose key is `me`, to the members at these addresses and to their successors."""

    def __init__(
        self,
        transport: Transport,
        hello: Hello,
        me: PeerId,
        addresses: Mapping[PeerId, str],
        inbox: Inbox,
        *,
        hold_s: float,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._transport = transport
        self._hello = hello
        self._me = me
        self._inbox = inbox
        self._hold_s = hold_s  # how long messages wait for a connection
        self._neighbours = {peer: Neighbour(address) for peer, address in addresses.items() if peer != me}
        self._members = frozenset(addresses)
        self._mine = NOWHERE
        self._ungreeted: deque[asyncio.Task[None]] = deque()
        self._refusals = Refusals(note)
        self._banned: frozenset[PeerId] = frozenset()
        self._tasks: set[asyncio.Task[None]] = set()
        self.received = dict.fromkeys(Lane, 0)  # bytes
        self.sent = 0

    # For the protocol's thread: each property copies the table first, which the event loop may change meanwhile

    @property
    def connected(self) -> frozenset[PeerId]:
        return frozenset(peer for peer, one in list(self._neighbours.items()) if one.up)

    @property
    def gone(self) -> frozenset[PeerId]:
        """Peers that were connected, are not any more, and could not be dialled again (SPEC Q9). A peer that gave no address is
        waited for. Nobody, if fewer than half of the members are connected: it may be this peer's own connection that failed."""
        members = [one for peer, one in list(self._neighbours.items()) if peer in self._members]
        if 2 * sum(one.up for one in members) < len(members):
            return frozenset()
        return frozenset(peer for peer, one in list(self._neighbours.items()) if one.gone)

    @property
    def standings(self) -> dict[PeerId, Standing]:
        """How far each connected peer is."""
        return {peer: one.standing for peer, one in list(self._neighbours.items()) if one.up}

    @property
    def troubles(self) -> dict[PeerId, str]:
        """The reason for every peer that is not connected."""
        refused = self._refusals.reasons()
        return {peer: refused.get(peer, one.trouble) for peer, one in list(self._neighbours.items()) if not one.up}

    @property
    def refused(self) -> dict[PeerId, str]:
        """Peers that do not fit, and why: they refuse us, or we them."""
        return self._refusals.reasons()

    # In the event loop

    async def run(self) -> None:
        """Accept and dial until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._accept())
                for peer, neighbour in self._neighbours.items():
                    group.create_task(self._keep_up(peer, neighbour))
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._transport.close()

    def post(self, to: PeerId, lane: Lane, message: bytes) -> None:
        """Send, or hold for a moment: a lost connection is soon back, or its peer is gone."""
        neighbour = self._neighbours.get(to)
        if neighbour is None:
            return
        connection = neighbour.connection
        if connection is None or not self._send(connection, lane, message):
            neighbour.hold(lane, message)

    def stand(self, standing: Standing) -> None:
        """Tell everyone how far this peer is, if that has changed."""
        if standing == self._mine:
            return
        self._mine = standing
        for neighbour in self._neighbours.values():
            if neighbour.connection is not None:
                self._say(neighbour.connection, standing)

    def ban(self, banned: frozenset[PeerId]) -> None:
        """Send nothing more to these, and hear nothing more from them."""
        for peer in banned - self._banned:
            neighbour = self._neighbours.get(peer)
            if neighbour is not None and neighbour.connection is not None:
                neighbour.connection.close("banned")
        self._banned = banned

    def _send(self, connection: Connection, lane: Lane, message: bytes) -> bool:
        self.sent += len(message)
        return connection.send(lane, CONTROL_PACKET + message if lane == Lane.CONTROL else message)

    def _say(self, connection: Connection, message: SessionMessage) -> None:
        connection.send(Lane.CONTROL, CONTROL_SESSION + encode_session_message(message))

    # Connecting

    async def _accept(self) -> None:
        while True:
            connection = await self._transport.accept()
            task = self._start(self._greet_and_read(connection))
            self._ungreeted.append(task)
            while self._ungreeted and self._ungreeted[0].done():
                self._ungreeted.popleft()
            if len(self._ungreeted) > _MOST_UNGREETED:
                self._ungreeted.popleft().cancel()  # the oldest: a crowd of silent strangers only crowds out itself

    async def _keep_up(self, peer: PeerId, neighbour: Neighbour) -> None:
        """Dial one neighbour whenever it is not connected."""
        if not neighbour.address:
            neighbour.trouble = "it gave no address, so it has to dial"
            return
        retry = _FIRST_RETRY_S
        patience = 0.0 if self._me < peer else _YIELDING_AT_FIRST_S
        while True:
            if peer in self._banned:
                return
            if neighbour.up and self._me > peer:
                patience = _YIELDING_S
            wait = max(patience, _REFUSED_RETRY_S if peer in self._refusals else 0.0)
            if neighbour.up or time.monotonic() < neighbour.lost_at + wait:
                await asyncio.sleep(_LOOK_EVERY_S)
                continue
            try:
                connection = await self._transport.dial(neighbour.address, peer)
            except UnreachableError as error:
                neighbour.trouble = str(error)
                if neighbour.lost and not neighbour.up:
                    neighbour.gone = True
                    self._inbox.wake()
                await asyncio.sleep(retry)
                retry = min(_LAST_RETRY_S, retry * 1.5)
                continue
            self._start(self._greet_and_read(connection))
            if await self._comes_up(neighbour):
                retry = _FIRST_RETRY_S
            else:
                await asyncio.sleep(retry)
                retry = min(_LAST_RETRY_S, retry * 1.5)

    async def _comes_up(self, neighbour: Neighbour) -> bool:
        """Whether the greeting succeeds in time."""
        until = time.monotonic() + _GREETING_S
        while not neighbour.up and time.monotonic() < until:
            await asyncio.sleep(_LOOK_EVERY_S)
        return neighbour.up

    def _start(self, coroutine: "asyncio._CoroutineLike[None]") -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # One connection

    async def _greet_and_read(self, connection: Connection) -> None:
        why = "it did not say who it is"
        try:
            self._say(connection, self._hello)
            async with asyncio.timeout(_GREETING_S):
                heard = await connection.receive()
            if heard is None:
                why = "it hung up"
                return
            peer = connection.peer
            if refusal := check_greeting(heard, peer, self._hello, self._members, self._banned):
                why = refusal
                self._say(connection, Refused(why[:500]))
                self._note_refusal(peer, why)
                return
            self._ungreeted = deque(task for task in self._ungreeted if task is not asyncio.current_task())
            self._take(peer, connection)
            try:
                await self._read(peer, connection)
            finally:
                self._lose(peer, connection)
        except TimeoutError:
            pass
        finally:
            connection.close(why)

    def _note_refusal(self, peer: PeerId, why: str) -> None:
        if peer in self._neighbours and peer not in self._banned:
            self._refusals.add(peer, why)

    def _take(self, peer: PeerId, connection: Connection) -> None:
        """Send on the newest connection from now on; messages that still arrive on an older one are heard."""
        neighbour = self._neighbours.setdefault(peer, Neighbour(""))
        neighbour.connect(connection)
        self._say(connection, self._mine)
        for lane, message in neighbour.release(time.monotonic() - self._hold_s):
            self._send(connection, lane, message)

    def _lose(self, peer: PeerId, connection: Connection) -> None:
        neighbour = self._neighbours[peer]
        if neighbour.connection is connection:
            neighbour.lose()
            if not neighbour.address and peer not in self._members:
                del self._neighbours[peer]

    async def _read(self, peer: PeerId, connection: Connection) -> None:
        while (heard := await connection.receive()) is not None:
            lane, raw = heard
            self.received[lane] += len(raw)
            if lane == Lane.CONTROL and bytes(raw[:1]) == CONTROL_SESSION:
                said = decode_session_message(bytes(raw[1:]))
                if isinstance(said, Standing):
                    self._neighbours[peer].standing = said
                    self._refusals.forget(peer)
                elif isinstance(said, Refused):
                    self._note_refusal(peer, f"it refuses this peer: {said.why}")
                    return
                continue
            message = bytes(raw[1:]) if lane == Lane.CONTROL else raw
            if not self._inbox.put(peer, message):
                while not self._inbox.has_room(peer):  # nothing more is read, so that its sender has to wait
                    await asyncio.sleep(_LOOK_EVERY_S)
