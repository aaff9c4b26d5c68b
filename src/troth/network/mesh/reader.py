"""Reading a connection to its end: session messages are heard here, packets wait for the protocol's thread."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from troth.crypto import PeerId
from troth.network.mesh.dial_back import DialBacks
from troth.network.mesh.inbox import Inbox
from troth.network.mesh.neighbour import Neighbours
from troth.network.mesh.one_process import KeyUse
from troth.network.mesh.refusals import Refusals
from troth.network.mesh.session import (
    CONTROL_SESSION,
    DialBack,
    Goodbye,
    KeyInUse,
    Reached,
    Refused,
    Standing,
    decode_session_message,
)
from troth.network.transport.base import Connection, Lane

_LOOK_EVERY_S = 0.05
_STRANGERS_PER_SECOND = 256.0  # messages of all of them together; each sends a few in a second, if it is honest
_BURST_S = 0.25


class Turns:
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


class Reader:
    """Reads the connections of one mesh."""

    def __init__(
        self,
        inbox: Inbox,
        neighbours: Neighbours,
        refusals: Refusals,
        key_use: KeyUse,
        refused: Callable[[PeerId, str], None],  # called with whoever refuses this peer, and why
        dial_backs: DialBacks,
        start: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._inbox = inbox
        self._neighbours = neighbours
        self._refusals = refusals
        self._key_use = key_use
        self._refused = refused
        self._dial_backs = dial_backs
        self._start = start
        self._turns = Turns(time.monotonic)
        self.received = dict.fromkeys(Lane, 0)  # bytes

    async def read(self, connection: Connection, seat: PeerId) -> bool:
        """Hear a connection to its end; return whether the other side said goodbye. About keys in use each founder has one voice,
        and nobody else: keys cost nothing."""
        peer, founder, dialled_back = connection.peer, seat in self._neighbours.founders, False
        while (heard := await connection.receive()) is not None:
            if not self._neighbours.knows(peer) and (wait_s := self._turns.take()):
                await asyncio.sleep(wait_s)
            lane, raw = heard
            self.received[lane] += len(raw)
            if lane == Lane.CONTROL and bytes(raw[:1]) == CONTROL_SESSION:
                said = decode_session_message(bytes(raw[1:]))
                if isinstance(said, Standing):
                    self._neighbours.stands(peer, said)
                    self._refusals.forget(peer)
                    self._key_use.welcomed(seat)
                elif isinstance(said, Refused):
                    self._refused(peer, f"it refuses this peer: {said.why}")
                    if said.key_in_use and founder:
                        self._key_use.refused(seat)
                    return False
                elif isinstance(said, KeyInUse) and founder:
                    self._key_use.warned(seat)
                elif isinstance(said, Goodbye):
                    return True
                elif isinstance(said, Reached):
                    self._dial_backs.heard(peer, said)
                elif isinstance(said, DialBack) and not dialled_back:
                    dialled_back = True
                    self._start(self._dial_backs.dial(connection, said.address))
                continue
            message = bytes(raw[1:]) if lane == Lane.CONTROL else raw
            most = self._neighbours.most_waiting(peer)
            if not self._inbox.put(peer, message, most):
                # Nothing more is read, so that its sender has to wait; a stranger that is gone is not waited for.
                while not self._inbox.has_room(peer, most) and (most is None or connection.up):
                    await asyncio.sleep(_LOOK_EVERY_S)
        return False
