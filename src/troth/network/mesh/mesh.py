"""One connection to every member, kept up: greeted, found again when it is lost, one for each pair.

Everything here runs in the network's event loop. `PacketLink` gives the protocol's thread its end.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from troth.crypto import PeerId, Signature, verify
from troth.errors import printable
from troth.network.mesh.inbox import Inbox
from troth.network.mesh.session import (
    VERSION,
    Hello,
    Refused,
    Said,
    Standing,
    decode_said,
    delegation_bytes,
    encode_said,
)
from troth.network.transport.base import Connection, Lane, Received, Transport, UnreachableError
from troth.protocol.wire.messages import Malformed

_SAID, _PACKET = b"\x00", b"\x01"  # what a control message is
_GREETING_S = 5.0
_YIELDING_S = 3.0  # when a connection is lost the smaller key dials at once, the larger only after this
_YIELDING_AT_FIRST_S = 0.3  # others may have given up for a while on somebody who was away
_FIRST_RETRY_S, _LAST_RETRY_S = 0.2, 10.0
_REFUSED_RETRY_S = 5.0  # somebody may mend it there
_LOOK_EVERY_S = 0.05
_MOST_UNGREETED = 64
_MOST_HELD = 1 << 23  # bytes kept for somebody who is not connected

_NOWHERE = Standing(ready=False, begun=False, step=0)
_log = logging.getLogger("troth.network")


@dataclass
class _Neighbour:
    """A member, connected or not."""

    address: str
    connection: Connection | None = None
    standing: Standing = _NOWHERE
    held: deque[tuple[float, Lane, bytes]] = field(default_factory=deque)  # what is to be sent when it is back
    held_bytes: int = 0
    lost_at: float = field(default_factory=time.monotonic)
    lost: bool = False  # it was connected, and is not any more
    gone: bool = False  # and dialling it again has failed since
    trouble: str = "not reached yet"

    @property
    def up(self) -> bool:
        return self.connection is not None


class Mesh:
    """The connections of one peer."""

    def __init__(
        self,
        transport: Transport,
        hello: Hello,
        me: PeerId,
        addresses: Mapping[PeerId, str],
        inbox: Inbox,
        *,
        hold_s: float,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._transport = transport
        self._hello = hello
        self._me = me
        self._inbox = inbox
        self._hold_s = hold_s  # how long what cannot be sent is kept
        self._told = told  # one line for the person who watches
        self._neighbours = {peer: _Neighbour(address) for peer, address in addresses.items() if peer != me}
        self._members = frozenset(addresses)
        self._mine = _NOWHERE
        self._ungreeted: deque[asyncio.Task[None]] = deque()
        self._refused: dict[PeerId, str] = {}
        self._complained_of: set[PeerId] = set()
        self._banned: frozenset[PeerId] = frozenset()
        self._tasks: set[asyncio.Task[None]] = set()
        self.received = dict.fromkeys(Lane, 0)  # bytes
        self.sent = 0

    # What the peer sees of it

    @property
    def connected(self) -> frozenset[PeerId]:
        return frozenset(peer for peer, one in list(self._neighbours.items()) if one.connection is not None)

    @property
    def gone(self) -> frozenset[PeerId]:
        """Who was connected, is not any more, and could not be dialled again (SPEC Q9); nobody, if it may be one's own line.
        Whoever gave no address is waited for."""
        members = [one for peer, one in list(self._neighbours.items()) if peer in self._members]
        if 2 * sum(one.up for one in members) < len(members):
            return frozenset()
        return frozenset(peer for peer, one in list(self._neighbours.items()) if one.gone)

    @property
    def standings(self) -> dict[PeerId, Standing]:
        """Of those who are connected."""
        return {peer: one.standing for peer, one in list(self._neighbours.items()) if one.connection is not None}

    @property
    def troubles(self) -> dict[PeerId, str]:
        """Why others are not connected."""
        return {
            peer: self._refused.get(peer, one.trouble)
            for peer, one in list(self._neighbours.items())
            if one.connection is None
        }

    @property
    def refused(self) -> dict[PeerId, str]:
        """Who is not connected because it does not fit, and why: they refuse us, or we them."""
        return dict(self._refused)

    # In the event loop

    async def run(self) -> None:
        """Until it is cancelled."""
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
        """Send, or keep for a moment: a lost connection is soon back, or its peer is gone."""
        neighbour = self._neighbours.get(to)
        if neighbour is None:
            return
        connection = neighbour.connection
        if connection is not None and self._send(connection, lane, message):
            return
        if neighbour.held_bytes + len(message) <= _MOST_HELD:
            neighbour.held.append((time.monotonic(), lane, message))
            neighbour.held_bytes += len(message)

    def stand(self, standing: Standing) -> None:
        if standing == self._mine:
            return
        self._mine = standing
        for neighbour in self._neighbours.values():
            if neighbour.connection is not None:
                self._say(neighbour.connection, standing)

    def ban(self, banned: frozenset[PeerId]) -> None:
        """Nothing more to or from these."""
        for peer in banned - self._banned:
            neighbour = self._neighbours.get(peer)
            if neighbour is not None and neighbour.connection is not None:
                neighbour.connection.close("banned")
        self._banned = banned

    def _send(self, connection: Connection, lane: Lane, message: bytes) -> bool:
        self.sent += len(message)
        return connection.send(lane, _PACKET + message if lane == Lane.CONTROL else message)

    def _say(self, connection: Connection, said: Said) -> None:
        connection.send(Lane.CONTROL, _SAID + encode_said(said))

    # Finding each other

    async def _accept(self) -> None:
        while True:
            connection = await self._transport.accept()
            task = self._start(self._greet_and_read(connection))
            self._ungreeted.append(task)
            while self._ungreeted and self._ungreeted[0].done():
                self._ungreeted.popleft()
            if len(self._ungreeted) > _MOST_UNGREETED:
                self._ungreeted.popleft().cancel()  # the one that takes its time the longest

    async def _keep_up(self, peer: PeerId, neighbour: _Neighbour) -> None:
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
            wait = max(patience, _REFUSED_RETRY_S if peer in self._refused else 0.0)
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

    async def _comes_up(self, neighbour: _Neighbour) -> bool:
        """Whether the greeting goes well."""
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
            peer = self._greeted(connection, heard)
            if isinstance(peer, str):
                why = peer
                self._refuse(connection, why)
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

    def _greeted(self, connection: Connection, heard: tuple[Lane, Received]) -> PeerId | str:
        """Who it is, or what is wrong with it."""
        lane, raw = heard
        said = (
            decode_said(bytes(raw[1:])) if lane == Lane.CONTROL and bytes(raw[:1]) == _SAID else Malformed("no hello")
        )
        if isinstance(said, Refused):
            return f"it refuses this peer: {said.why}"
        if not isinstance(said, Hello):
            return "it did not say hello"
        if said.version != VERSION:
            return f"it speaks version {said.version} of the session, and this peer {VERSION}"
        if said.run != self._hello.run:
            mine, theirs = self._hello.sections, said.sections
            differing = [name for name in mine if mine.get(name) != theirs.get(name)]
            return f"another run: the manifests differ in {', '.join(differing) or 'founders or nonce'}"
        member = PeerId(said.member)
        if member not in self._members:
            return "its key is not in this run"
        if {member, connection.peer} & self._banned:
            return "it is banned from this run"
        if member != connection.peer:
            signed = delegation_bytes(self._hello.run, connection.peer)  # type: ignore[arg-type]
            if said.delegation is None or not verify(member, signed, Signature(said.delegation)):
                return "it claims a seat that is not its own"
        return connection.peer

    def _refuse(self, connection: Connection, why: str) -> None:
        self._say(connection, Refused(why[:500]))
        self._note_refusal(connection.peer, why)

    def _note_refusal(self, peer: PeerId, why: str) -> None:
        """Told once for each peer, whatever it says next; and the other side may have written it."""
        if peer not in self._neighbours or peer in self._banned:
            return
        self._refused[peer] = printable(why)
        if peer not in self._complained_of:
            self._complained_of.add(peer)
            self._told(f"{peer.hex()[:8]}: {printable(why)}")

    def _take(self, peer: PeerId, connection: Connection) -> None:
        """The newest connection is the one to send on; what still comes on an older one is heard."""
        neighbour = self._neighbours.setdefault(peer, _Neighbour(""))
        neighbour.connection, neighbour.lost, neighbour.gone = connection, False, False
        self._say(connection, self._mine)
        fresh = time.monotonic() - self._hold_s
        while neighbour.held:
            when, lane, message = neighbour.held.popleft()
            if when >= fresh:
                self._send(connection, lane, message)
        neighbour.held_bytes = 0

    def _lose(self, peer: PeerId, connection: Connection) -> None:
        neighbour = self._neighbours[peer]
        if neighbour.connection is connection:
            neighbour.connection, neighbour.lost_at, neighbour.trouble = None, time.monotonic(), "lost"
            neighbour.lost = True
            if not neighbour.address and peer not in self._members:
                del self._neighbours[peer]

    async def _read(self, peer: PeerId, connection: Connection) -> None:
        while (heard := await connection.receive()) is not None:
            lane, raw = heard
            self.received[lane] += len(raw)
            if lane == Lane.CONTROL and bytes(raw[:1]) == _SAID:
                said = decode_said(bytes(raw[1:]))
                if isinstance(said, Standing):
                    self._neighbours[peer].standing = said
                    self._refused.pop(peer, None)
                elif isinstance(said, Refused):
                    self._note_refusal(peer, f"it refuses this peer: {said.why}")
                    return
                continue
            message = bytes(raw[1:]) if lane == Lane.CONTROL else raw
            if not self._inbox.put(peer, message):
                while not self._inbox.has_room(peer):  # nothing more is read, and its sender has to wait
                    await asyncio.sleep(_LOOK_EVERY_S)
