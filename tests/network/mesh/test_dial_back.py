"""Whether others reach an address: members dial for a stranger, within bounds, and say no more than yes or no."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from tests.network.mesh.test_mesh import free_address
from tests.network.mesh.test_one_process import say, until
from tests.network.mesh.test_strangers import MEMBER, STRANGERS, _Member, play
from troth.crypto import PeerId
from troth.network import mesh
from troth.network.mesh import DialBacks
from troth.network.neighbour import (
    CONTROL_SESSION,
    DialBack,
    Reached,
    SessionMessage,
    decode_session_message,
    encode_session_message,
)
from troth.network.transport.base import TransportLimits, UnreachableError
from troth.network.transport.connection import StreamConnection
from troth.network.transport.tcp import TcpTransport
from troth.protocol.wire.messages import Malformed

ASKER = STRANGERS[0]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "ANSWER_S", 0.2)


async def answer(connection: StreamConnection) -> bool:
    """The next answer that a member gives."""
    while (heard := await connection.receive()) is not None:
        said = decode_session_message(bytes(heard[1][1:])) if bytes(heard[1][:1]) == CONTROL_SESSION else None
        if isinstance(said, Reached):
            return said.yes
    raise AssertionError("it hung up")


def test_a_member_says_whether_it_reaches_the_key_that_asks() -> None:
    """Nobody at that address, another key there, and the asker itself."""

    async def part(member: _Member) -> None:
        here, elsewhere = free_address(), free_address()
        limits = TransportLimits(1 << 20, 1 << 20, 1 << 22)
        mine, others = (TcpTransport(one, limits) for one in (ASKER, STRANGERS[1]))
        await mine.listen(here)
        await others.listen(elsewhere)
        for address, reached in ((free_address(), False), (elsewhere, False), (here, True)):
            connection = await member.greeted_by(ASKER)
            say(connection, DialBack(address))
            assert await answer(connection) is reached
            connection.close()
            await until(lambda: ASKER.peer not in member.mesh.connected)
        await mine.close()
        await others.close()

    play(part)


def test_one_connection_is_worth_one_dial() -> None:
    async def part(member: _Member) -> None:
        dialled: list[str] = []

        async def dial(address: str, _peer: PeerId) -> StreamConnection:
            dialled.append(address)
            raise UnreachableError("nobody is there")

        member.mesh.dial_backs._dial = dial
        connection = await member.greeted_by(ASKER)
        for port in range(1, 20):
            say(connection, DialBack(f"victim:{port}"))
        assert await answer(connection) is False
        assert dialled == ["victim:1"]

    play(part)


class _Asked:
    """A member whose dials end as the test says, and what it says to those who asked."""

    def __init__(self, dial: Callable[[str, PeerId], Awaitable[StreamConnection]]) -> None:
        self.said: list[SessionMessage] = []
        self.backs = DialBacks(dial, lambda _, message: self.said.append(message))

    async def by(self, peer: PeerId, address: str) -> None:
        await self.backs.dial(cast(StreamConnection, _From(peer)), address)


class _From:
    def __init__(self, peer: PeerId) -> None:
        self.peer = peer


def test_few_are_dialled_at_a_time_and_a_refusal_takes_as_long_as_silence() -> None:
    """Else strangers could learn which ports of a member's own network are open."""

    async def meet() -> None:
        dialled = 0

        async def dial(address: str, _peer: PeerId) -> StreamConnection:
            nonlocal dialled
            dialled += 1
            if address == "silent:1":
                await asyncio.sleep(60)
            raise UnreachableError("refused")

        member = _Asked(dial)
        clock = asyncio.get_running_loop().time
        for address in ("silent:1", "refused:1"):
            began = clock()
            await member.by(ASKER.peer, address)
            assert clock() >= began + mesh.ANSWER_S
        assert member.said == [Reached(False), Reached(False)]
        dialled = 0
        await asyncio.gather(*(member.by(one.peer, "silent:1") for one in STRANGERS for _ in range(5)))
        assert dialled == mesh._MOST_DIAL_BACKS
        await member.by(ASKER.peer, "refused:1")
        assert dialled == mesh._MOST_DIAL_BACKS + 1, "room comes back"

    asyncio.run(meet())


def test_only_answers_of_those_who_were_asked_count() -> None:
    async def nobody(_address: str, _peer: PeerId) -> StreamConnection:
        raise UnreachableError("nobody is there")

    backs = _Asked(nobody).backs
    backs.asked(MEMBER.peer)
    backs.heard(ASKER.peer, Reached(True))
    assert backs.answers == {MEMBER.peer: None}
    backs.heard(MEMBER.peer, Reached(True))
    assert backs.answers == {MEMBER.peer: True}


@pytest.mark.parametrize("address", ["", "a b:1", "x" * 129, "höst:1", "\x1b[2J:1"])
def test_addresses_that_nobody_should_dial_are_malformed(address: str) -> None:
    given: Any = address
    assert isinstance(decode_session_message(encode_session_message(DialBack(given))), Malformed)
