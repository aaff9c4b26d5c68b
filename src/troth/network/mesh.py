"""One connection to every member, kept up: greeted, read, dialled again when it is lost, one for each pair.

Everything here runs in the network's event loop. Session messages are heard here; packets wait in the inbox for the protocol's
thread, whose end of the network is `link.NetworkLink`.
"""

import asyncio
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from troth.crypto import PeerId
from troth.errors import OperatorError, printable
from troth.network.neighbour import (
    CONTROL_PACKET,
    CONTROL_SESSION,
    NOWHERE,
    DialBack,
    ExpectedConnections,
    Goodbye,
    Hello,
    KeyInUse,
    Neighbour,
    Neighbours,
    Reached,
    Redial,
    Refused,
    SessionMessage,
    Standing,
    check_greeting,
    encode_session_message,
    session_message,
)
from troth.network.transport.base import Lane, Message, Received, Transport, UnreachableError, pieces_of
from troth.network.transport.connection import StreamConnection

ANSWER_S = 3.0  # of a dial-back
_MOST_DIAL_BACKS = 4  # at a time
_OVERHEAD = 256  # bytes that an empty message counts for in the inbox
_OF_KNOWN = 16  # messages in a row from there while strangers wait
_GREETING_S = 5.0
_YIELDING_S = 0.3  # when a connection is lost the smaller key dials at once, the larger only after this
_REFUSED_RETRY_S = 5.0  # somebody may mend it there
_REDIAL_S = 2.0  # for a peer that gave no address: it dials by itself, or is gone
_LOOK_EVERY_S = 0.05
_STRANGERS_PER_SECOND = 256.0  # messages of all of them together; each sends a few in a second, if it is honest
_BURST_S = 0.25
_ALIVE_S = 6.0  # a connection that carries nothing else carries a ping every 2.5 s
_SECOND_PROCESS = "another process with this key is connected to it, and alive"


class DialBacks:
    """Whether others reach an address: a peer asks members to dial it there, and each says whether that worked. Both sides of it.

    Strangers ask, too. So a member dials once for each connection, for few at a time, and says no more than yes or no: yes if the
    key that asks has answered there, no after a fixed time. Else strangers could learn which ports of its own network are open.
    """

    def __init__(
        self,
        dial: Callable[[str, PeerId], Awaitable[StreamConnection]],
        say: Callable[[StreamConnection, SessionMessage], None],
    ) -> None:
        self._dial = dial
        self._say = say
        self._under_way = 0
        self._answers: dict[PeerId, bool | None] = {}  # of those that this peer has asked; None: not yet

    async def dial(self, connection: StreamConnection, address: str) -> None:
        """Dial the peer that asks for it at this address, and tell it whether it was there; nothing, if too many ask."""
        if self._under_way >= _MOST_DIAL_BACKS:
            return
        clock = asyncio.get_running_loop().time
        self._under_way, until = self._under_way + 1, clock() + ANSWER_S
        try:
            reached = await self._reaches(address, connection.peer)
            await asyncio.sleep(0.0 if reached else until - clock())
        finally:
            self._under_way -= 1
        self._say(connection, Reached(reached))

    async def _reaches(self, address: str, peer: PeerId) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                connection = await self._dial(address, peer)
        except (TimeoutError, UnreachableError):
            return False
        connection.close("it can be reached")
        return True

    def asked(self, peer: PeerId) -> None:
        """Take note that this peer was asked: nobody else's answer counts."""
        self._answers[peer] = None

    def heard(self, peer: PeerId, reached: Reached) -> None:
        if peer in self._answers:
            self._answers[peer] = reached.yes

    @property
    def answers(self) -> dict[PeerId, bool | None]:
        """May be called from any thread."""
        return dict(self._answers)


_Queues = OrderedDict[PeerId, deque[Received]]


class StoppedError(Exception):
    """The operator asked this peer to stop."""


class Inbox:
    """Messages that have arrived, from the network's thread to the protocol's: a bounded queue for each sender.

    Senders take turns, so a peer that sends without end delays nobody else by more than one message at a time. Those that are
    known go first; of strangers one message is taken after so many of theirs, so that nobody waits for ever (SPEC M4).
    """

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


class StrangersTurns:
    """The messages of strangers: one for each connection in turn, and so many in a second, whatever they send. The rest is not
    even read, so a flood costs its senders' patience and no processor [M4]."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next = 0.0

    def take(self) -> float:
        """Seconds to wait for the next turn, which is the caller's."""
        now = self._clock()
        self._next = max(self._next, now - _BURST_S)
        turn, self._next = self._next, self._next + 1 / _STRANGERS_PER_SECOND
        return max(0.0, turn - now)


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
        liars: int = 0,
        strangers: bool = False,  # may connect too
        note: Callable[[str], None] = lambda _: None,
        name_of: Callable[[PeerId], str] = lambda peer: peer.hex()[:8],
    ) -> None:
        self._transport = transport
        self._hello = hello
        self._me = me
        self._inbox = inbox
        self._hold_s = hold_s  # how long messages wait for a connection
        self._open = strangers
        self._neighbours = Neighbours(me, addresses)
        self._mine = NOWHERE
        self._left = False
        self._greeted: dict[StreamConnection, None] = {}  # also those that a newer one of the same peer has replaced
        self._note = note
        self._name_of = name_of
        self._refused: dict[PeerId, str] = {}  # peers that do not fit, and why: they refuse us, or we them
        self._noted: set[PeerId] = set()  # those that people have read a reason for
        self._key_use = KeyUse(liars, inbox.stop, note)
        self._banned: frozenset[PeerId] = frozenset()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = StrangersTurns(time.monotonic)
        self.dial_backs = DialBacks(transport.dial, self._say)
        self.received = dict.fromkeys(Lane, 0)  # bytes of messages
        self._past_bytes = (0, 0)  # in and out, on connections that have ended

    # For the protocol's thread

    @property
    def connected(self) -> frozenset[PeerId]:
        return frozenset(peer for peer, one in self._neighbours if one.up)

    @property
    def standings(self) -> dict[PeerId, Standing]:
        """How far each connected peer is."""
        return {peer: one.standing for peer, one in self._neighbours if one.up}

    @property
    def gone(self) -> frozenset[PeerId]:
        """Peers that are not waited for, once all that they sent is taken (SPEC Q9)."""
        return frozenset(peer for peer in self._neighbours.gone if not self._inbox.holds(peer))

    @property
    def troubles(self) -> dict[PeerId, str]:
        """The reason for every peer that is not connected."""
        troubles = {peer: one.trouble for peer, one in self._neighbours if not one.up}
        return troubles | self.refused | dict.fromkeys(self._banned, "banned")

    @property
    def refused(self) -> dict[PeerId, str]:
        """Peers that do not fit, and the last reason: they refuse us, or we them."""
        return dict(self._refused)

    @property
    def bytes(self) -> tuple[int, int]:
        """In and out on all connections so far, as the transport counts them: with framing, before encryption."""
        now = [(one.bytes_in, one.bytes_out) for one in list(self._greeted)]
        bytes_in, bytes_out = (sum(each) for each in zip(self._past_bytes, *now, strict=True))
        return bytes_in, bytes_out

    @property
    def links(self) -> list[tuple[PeerId, Neighbour]]:
        """Everybody who has a seat, connected or not."""
        return [(peer, one) for peer, one in self._neighbours if self._neighbours.has_seat(peer)]

    # In the event loop

    async def run(self) -> None:
        """Accept and dial until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._accept())
                for peer, neighbour in self._neighbours:
                    group.create_task(self._keep_up(peer, neighbour))
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._transport.close()

    def post(self, to: PeerId, lane: Lane, message: Message, *, asks: bool = False) -> None:
        """Send, or hold for a moment: a lost connection is soon back, or its peer is gone. `asks`: the answer may be long."""
        neighbour = self._neighbours.get(to)
        if neighbour is not None and self._neighbours.takes(to):
            if asks and not neighbour.asked:
                neighbour.asked = True
                self._recognise()
            neighbour.answered()
            if neighbour.connection is None or not self._send(neighbour.connection, lane, message):
                neighbour.hold(lane, message)
        if not self._neighbours.knows(to):
            self._neighbours.bound_queues()

    def stand(self, standing: Standing) -> None:
        """Tell everyone how far this peer is, if that has changed. When it begins, nobody who is missing is waited for."""
        if standing == self._mine:
            return
        if standing.begun and not self._mine.begun:
            self._neighbours.begin()
        self._mine = standing
        for peer, neighbour in self._neighbours:
            if neighbour.connection is not None and self._neighbours.takes(peer):
                self._say(neighbour.connection, standing)

    def expect(self, expected: ExpectedConnections) -> None:
        """Take note of the run as it is now; members who were strangers are dialled where they said."""
        for peer in self._neighbours.expect(expected):
            self._start(self._keep_up(peer, self._neighbours.of(peer)))
        self._recognise()

    def ask_whether_reached(self, address: str) -> None:
        """Ask the members that are connected, each once, whether they reach this peer at its address: see `dial_backs`."""
        for peer, neighbour in self._neighbours:
            new = self._neighbours.has_seat(peer) and peer not in self.dial_backs.answers
            if neighbour.connection is not None and new:
                self.dial_backs.asked(peer)
                self._say(neighbour.connection, DialBack(address))

    def leave(self) -> None:
        """Say goodbye to everyone, and hang up: they go on without this peer at once."""
        self._left = True
        for connection in self._neighbours.connections:
            self._say(connection, Goodbye())
            connection.close("it left")

    def ban(self, banned: frozenset[PeerId]) -> None:
        """Send nothing more to these, and hear nothing more from them."""
        for peer in banned - self._banned:
            neighbour = self._neighbours.get(peer)
            if neighbour is not None and neighbour.connection is not None:
                neighbour.connection.close("banned")
        self._banned = banned

    def _send(self, connection: StreamConnection, lane: Lane, message: Message) -> bool:
        pieces = pieces_of(message)
        return connection.send(lane, (CONTROL_PACKET, *pieces) if lane == Lane.CONTROL else pieces)

    def _say(self, connection: StreamConnection, message: SessionMessage) -> None:
        connection.send(Lane.CONTROL, CONTROL_SESSION + encode_session_message(message))

    # Connecting

    async def _accept(self) -> None:
        while True:
            self._start(self._greet_and_read(await self._transport.accept()))

    async def _keep_up(self, peer: PeerId, neighbour: Neighbour) -> None:
        """Dial one neighbour whenever it is not connected."""
        if not neighbour.address:
            neighbour.trouble = "it gave no address, so it has to dial"
            return
        redial = Redial(_YIELDING_S if self._me > peer else 0.0)
        while not self._left and peer not in self._banned and self._neighbours.is_dialled(peer, neighbour):
            if neighbour.up:
                redial.connected()
                await neighbour.goes_down()
            elif not redial.is_due(neighbour.lost_at, _REFUSED_RETRY_S if peer in self._refused else 0.0):
                await asyncio.sleep(_LOOK_EVERY_S)
            else:
                try:
                    connection = await self._transport.dial(neighbour.address, peer)
                except UnreachableError as error:
                    neighbour.trouble = str(error)
                    self._give_up(neighbour)
                else:
                    self._start(self._greet_and_read(connection))
                    await neighbour.comes_up(_GREETING_S)
                redial.tried()
        neighbour.address = neighbour.address if peer in self._neighbours.founders else ""

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # One connection

    async def _greet_and_read(self, connection: StreamConnection) -> None:
        why = "it left" if self._left else "it did not say who it is"
        try:
            if self._left:
                return
            self._say(connection, self._hello)
            async with asyncio.timeout(_GREETING_S):
                heard = await connection.receive()
            if heard is None:
                why = "it hung up"
                return
            peer = connection.peer
            known = self._neighbours.founders
            greeting = check_greeting(heard, peer, self._hello, known, self._banned, strangers=self._open)
            if isinstance(greeting, str):
                why = greeting
                self._say(connection, Refused(why[:500]))
                self._note_refusal(peer, why)
                return
            if await is_second_process(self._neighbours.get(peer), greeting.process):
                why = _SECOND_PROCESS
                self._say(connection, Refused(why, key_in_use=True))
                if (first := self._neighbours.of(peer).connection) is not None and self._neighbours.takes(peer):
                    self._say(first, KeyInUse())
                return
            self._take(connection, greeting)
            why, left = "the session is over", False
            try:
                left = await self._read(connection, PeerId(greeting.member))
            finally:
                bytes_in, bytes_out = self._past_bytes
                del self._greeted[connection]
                self._past_bytes = bytes_in + connection.bytes_in, bytes_out + connection.bytes_out
                self._lose(peer, connection, left=left)
        except TimeoutError:
            pass
        finally:
            connection.close(why)

    async def _read(self, connection: StreamConnection, seat: PeerId) -> bool:
        """Hear a connection to its end; return whether the other side said goodbye."""
        peer, dialled_back = connection.peer, False
        while (heard := await connection.receive()) is not None:
            if not self._neighbours.knows(peer) and (wait_s := self._turns.take()):
                await asyncio.sleep(wait_s)
            lane, raw = heard
            self.received[lane] += len(raw)
            if (said := session_message(lane, raw)) is None:
                await self._put(connection, bytes(raw[1:]) if lane == Lane.CONTROL else raw)
            elif isinstance(said, DialBack) and not dialled_back:
                dialled_back = True
                self._start(self.dial_backs.dial(connection, said.address))
            elif isinstance(said, Standing | Reached | KeyInUse | Refused):
                self._hear(peer, seat, said)
            if isinstance(said, Refused | Goodbye):
                return isinstance(said, Goodbye)
        return False

    def _hear(self, peer: PeerId, seat: PeerId, said: Standing | Reached | KeyInUse | Refused) -> None:
        """About keys in use each founder has one voice, and nobody else: keys cost nothing."""
        founder = seat in self._neighbours.founders
        match said:
            case Standing():
                if (neighbour := self._neighbours.get(peer)) is not None:
                    neighbour.standing = said
                self._refused.pop(peer, None)
                self._key_use.welcomed(seat)
            case Reached():
                self.dial_backs.heard(peer, said)
            case KeyInUse() if founder:
                self._key_use.warned(seat)
            case Refused():
                self._note_refusal(peer, f"it refuses this peer: {said.why}")
                if said.key_in_use and founder:
                    self._key_use.refused(seat)

    async def _put(self, connection: StreamConnection, message: Received) -> None:
        """Hand a packet over. Where its sender's room is full nothing more is read, so that the sender has to wait; a stranger is
        not waited for once it is gone."""
        peer, most = connection.peer, self._neighbours.most_waiting(connection.peer)
        if not self._inbox.put(peer, message, most):
            while not self._inbox.has_room(peer, most) and (most is None or connection.up):
                await asyncio.sleep(_LOOK_EVERY_S)

    def _note_refusal(self, peer: PeerId, why: str) -> None:
        """People read one reason for each peer, whatever it says next: it may have written the text."""
        if not self._neighbours.has_seat(peer) or peer in self._banned:
            return
        self._refused[peer] = printable(why)
        if peer not in self._noted:
            self._noted.add(peer)
            self._note(f"{self._name_of(peer)}: {printable(why)}")

    def _take(self, connection: StreamConnection, greeting: Hello) -> None:
        """Send on the newest connection from now on; messages that still arrive on an older one are heard."""
        self._neighbours.greeted(connection.peer, connection, greeting.process, PeerId(greeting.member))
        self._greeted[connection] = None
        self._recognise()
        neighbour = self._neighbours.of(connection.peer)
        self._say(connection, self._mine)
        for lane, message in neighbour.release(time.monotonic() - self._hold_s):
            self._send(connection, lane, message)

    def _recognise(self) -> None:
        """Tell each connection whether its other side is known now: its limits, and what becomes of its messages, follow from
        that (SPEC M4)."""
        for connection in self._greeted:
            connection.recognise(known=self._neighbours.knows(connection.peer))

    def _lose(self, peer: PeerId, connection: StreamConnection, *, left: bool) -> None:
        neighbour = self._neighbours.get(peer)
        if not self._neighbours.knows(peer) and all(one.peer != peer for one in self._greeted):
            self._inbox.drop(peer)  # what a stranger sent ends with its last connection, which need not be the newest
        if neighbour is None or neighbour.connection is not connection:
            return
        neighbour.lose()
        if left:
            self._give_up(neighbour)
        elif not neighbour.address:
            asyncio.get_running_loop().call_later(_REDIAL_S, self._give_up, neighbour)
        self._neighbours.forget(peer)

    def _give_up(self, neighbour: Neighbour) -> None:
        """Count a neighbour as gone, unless it is back; a reader that waits for it looks again."""
        if not neighbour.up and not neighbour.gone:
            neighbour.gone = True
            self._inbox.wake()


# One process for each key: a second one is refused while the first is alive, and both are told.
# A copied folder or key file would make two machines sign the same slots, which looks like a lie (SPEC Q6).


class KeyInUseError(OperatorError):
    """Other members say that this peer's key is in use elsewhere."""


async def is_second_process(neighbour: Neighbour | None, process: bytes) -> bool:
    """Whether the neighbour's connection belongs to another process, which is still heard. Waits until that is clear: after a
    power cut the old connection looks alive for a while."""
    older = neighbour.connection if neighbour is not None else None
    if neighbour is None or older is None or neighbour.process == process:
        return False
    heard, until = older.bytes_in, asyncio.get_running_loop().time() + _ALIVE_S
    while neighbour.connection is older and asyncio.get_running_loop().time() < until:
        if older.bytes_in > heard:
            return True
        await asyncio.sleep(_LOOK_EVERY_S)
    return False


class KeyUse:
    """Voices about this peer's own key. Liars must not stop anyone: more than `liars` seats have to say the same, since one
    member can delegate its seat to many keys."""

    def __init__(self, liars: int, stop: Callable[[Exception], None], note: Callable[[str], None]) -> None:
        self._liars = liars
        self._stop = stop
        self._note = note
        self._refused: set[PeerId] = set()  # seats that refused this process
        self._warned: set[PeerId] = set()  # seats that refused another one

    def welcomed(self, by: PeerId) -> None:
        """It took this process after all: the other one was dead."""
        self._refused.discard(by)

    def refused(self, by: PeerId) -> None:
        self._refused.add(by)
        if len(self._refused) > self._liars:
            self._stop(
                KeyInUseError(
                    "this key is in use: another process takes part in the run with it. Stop that one, or use a key of "
                    "your own; two with one key would be banned"
                )
            )

    def warned(self, by: PeerId) -> None:
        before = len(self._warned)
        self._warned.add(by)
        if before <= self._liars < len(self._warned):
            self._note(
                "another process tried to take part with this peer's key, and was refused; if that was not you, somebody "
                "has a copy of your key file"
            )
