"""Whether others reach an address: a peer asks members to dial it there, and each says whether that worked.

Strangers ask, too. So a member dials once for each connection, for few at a time, and says no more than yes or no: yes if the
key that asks has answered there, no after a fixed time. Else strangers could learn which ports of its own network are open.
"""

import asyncio
from collections.abc import Awaitable, Callable

from troth.crypto import PeerId
from troth.network.mesh.session import Reached, SessionMessage
from troth.network.transport.base import UnreachableError
from troth.network.transport.connection import StreamConnection

ANSWER_S = 3.0
_MOST_AT_A_TIME = 4


class DialBacks:
    """Both sides of it, for one peer."""

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
        if self._under_way >= _MOST_AT_A_TIME:
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
