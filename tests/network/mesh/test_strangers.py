"""Strangers on the network: any key may connect to a run whose door is open, and none stops, fills or crowds out a member."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.network.mesh.test_mesh import HELLO, free_address
from tests.network.mesh.test_one_process import say, until
from troth.crypto import Identity, PeerId, Seed, derive
from troth.network.mesh import mesh as mesh_module
from troth.network.mesh import neighbour as neighbour_module
from troth.network.mesh.inbox import Inbox
from troth.network.mesh.mesh import Mesh
from troth.network.mesh.neighbour import MOST_OF_STRANGERS, STRANGERS_ROOM, Expected, Neighbours
from troth.network.mesh.session import CONTROL_PACKET, Hello, KeyInUse, Refused, delegation_bytes
from troth.network.transport.base import Connection, Lane, Limits, UnreachableError
from troth.network.transport.tcp import TcpTransport

IDS = sorted((Identity.from_secret(Seed(derive(0, "strangers", k))) for k in range(8)), key=lambda one: one.peer)
MEMBER, FOUNDER, *STRANGERS = IDS
ROOM = 1 << 22


class _Member:
    """A member of a run whose door is open; it listens, and knows that one other founder."""

    def __init__(self) -> None:
        self.address = free_address()
        self.inbox = Inbox(ROOM)
        self.notes: list[str] = []

    async def __aenter__(self) -> "_Member":
        transport = TcpTransport(MEMBER, Limits(1 << 20, 1 << 20, 1 << 22), admits=lambda _: True)
        await transport.listen(self.address)
        hello = Hello(**{**HELLO, "member": MEMBER.peer})
        addresses = {MEMBER.peer: self.address, FOUNDER.peer: ""}
        given: dict[str, Any] = {"hold_s": 1.0, "liars": 1, "strangers": True, "note": self.notes.append}
        self.mesh = Mesh(transport, hello, MEMBER.peer, addresses, self.inbox, **given)
        self.mesh.expect(Expected(frozenset(addresses), current=True))
        self._task = asyncio.create_task(self.mesh.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def greeted_by(self, identity: Identity, **said: Any) -> Connection:
        transport = TcpTransport(identity, Limits(1 << 20, 1 << 20, 1 << 22), admits=lambda _: True)
        connection = await transport.dial(self.address, MEMBER.peer)
        say(connection, Hello(**{**HELLO, "member": identity.peer, "process": identity.peer, **said}))
        await until(lambda: identity.peer in self.mesh.connected)
        return connection


def play(part: Callable[[_Member], Awaitable[None]]) -> None:
    async def meet() -> None:
        async with AsyncExitStack() as stack:
            await part(await stack.enter_async_context(_Member()))

    asyncio.run(meet())


def test_no_crowd_of_strangers_stops_a_member() -> None:
    """They say that its key is in use elsewhere; more founders than may lie would have to say so."""

    async def part(member: _Member) -> None:
        for stranger in STRANGERS:
            connection = await member.greeted_by(stranger)
            say(connection, KeyInUse())
            say(connection, Refused("no", key_in_use=True))
            await until(lambda stranger=stranger: stranger.peer not in member.mesh.connected)  # type: ignore[misc]
        member.inbox.check()
        assert member.notes == []

    play(part)


def test_strangers_take_up_little_memory() -> None:
    """However large the parts of a model are that members send each other: requests and tickets are short."""

    async def part(member: _Member) -> None:
        stranger, founder = await member.greeted_by(STRANGERS[0]), await member.greeted_by(FOUNDER)
        for connection in (stranger, founder):
            connection.send(Lane.CONTROL, CONTROL_PACKET + bytes(MOST_OF_STRANGERS + 1))
        for _ in range(200):
            stranger.send(Lane.CONTROL, CONTROL_PACKET + bytes(1000))
        await until(lambda: not member.inbox.has_room(STRANGERS[0].peer, STRANGERS_ROOM))
        await asyncio.sleep(0)
        taken = []
        while (heard := member.inbox.get(0.0)) is not None:
            taken.append((heard[0], len(heard[1])))
        assert (FOUNDER.peer, MOST_OF_STRANGERS + 1) in taken
        of_stranger = [length for who, length in taken if who == STRANGERS[0].peer]
        assert set(of_stranger) == {1000}
        assert sum(of_stranger) <= STRANGERS_ROOM + 1000

    play(part)


def test_answers_to_a_stranger_that_never_reads_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection stays, since it may be slow; a founder that never reads is hung up on as ever."""
    most, answer = 1 << 20, bytes(1 << 18)
    monkeypatch.setattr(neighbour_module, "STRANGERS_QUEUE", most)

    async def part(member: _Member) -> None:
        queued = dict[PeerId, int]()
        for one in (STRANGERS[0], FOUNDER):
            near = await member.greeted_by(one)
            (far,) = [connection for connection in member.mesh._neighbours.connections if connection.peer == one.peer]
            for _ in range(200):  # more than the system's buffers hold
                member.mesh.post(one.peer, Lane.CONTROL, answer)
                await asyncio.sleep(0.001)
                queued[one.peer] = max(queued.get(one.peer, 0), far.queued_bytes)
            stays = one.peer in member.mesh.connected
            assert stays == (one is not FOUNDER)
            near.close()
            await near.closed()
            await far.closed()
        assert most < queued[STRANGERS[0].peer] <= most + len(answer) + 64
        assert queued[FOUNDER.peer] > most + len(answer) + 64

    play(part)


def test_a_crowd_does_not_keep_a_member_from_coming_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """[B8] A founder's successor key has no seat until it is back; the crowd crowds out itself."""
    monkeypatch.setattr(mesh_module, "_MOST_STRANGERS", 2)

    async def part(member: _Member) -> None:
        successor, *crowd = STRANGERS
        delegation = FOUNDER.sign(delegation_bytes(HELLO["run"], successor.peer))
        await member.greeted_by(successor, member=FOUNDER.peer, delegation=delegation)
        for stranger in crowd:
            await member.greeted_by(stranger)
        await until(lambda: len(member.mesh.connected) == 3)
        assert successor.peer in member.mesh.connected

    play(part)


def test_whoever_may_have_come_in_meanwhile_is_heard() -> None:
    """A peer that is in no step does not know yet who is a member: those may send it a model."""
    table = Neighbours(MEMBER.peer, {FOUNDER.peer: ""})
    stranger = STRANGERS[0].peer
    assert table.most_waiting(stranger) is None
    table.expect(Expected(frozenset({FOUNDER.peer}), current=True))
    assert table.most_waiting(stranger) == STRANGERS_ROOM
    for given in (
        {"members": frozenset({stranger})},
        {"candidates": frozenset({stranger})},
        {"addresses": {stranger: ""}},
    ):
        seated: dict[str, Any] = {"members": frozenset[PeerId](), "current": True, **given}
        table.expect(Expected(**seated))
        assert table.most_waiting(stranger) is None


def test_whoever_was_a_member_is_not_dialled_for_ever() -> None:
    """A stranger says where it is dialled: it could come in, go away, and have everyone knock at somebody else's door."""

    async def part(member: _Member) -> None:
        here, newcomer = free_address(), STRANGERS[0]
        seen: list[str] = []

        async def dial(address: str, _peer: PeerId) -> Connection:
            seen.append(address)
            raise UnreachableError("nobody is there")

        member.mesh._transport.dial = dial  # type: ignore[method-assign, assignment]
        founders = frozenset({MEMBER.peer, FOUNDER.peer})
        inside = Expected(founders | {newcomer.peer}, addresses={newcomer.peer: here}, current=True)
        outside = Expected(founders, addresses={newcomer.peer: here}, current=True)
        for _ in range(2):  # and when it is a member again, it is dialled again
            member.mesh.expect(inside)
            seen.clear()
            await until(lambda: here in seen)
            member.mesh.expect(outside)
            await until(lambda: not member.mesh._neighbours.of(newcomer.peer).address)

    play(part)


def test_a_candidate_is_dialled_while_it_is_one() -> None:
    """It may be unable to dial a member that nobody reaches; one that lost its slot is forgotten, and nobody dials it twice."""
    table = Neighbours(MEMBER.peer, {MEMBER.peer: "", FOUNDER.peer: ""})
    members, key = frozenset({MEMBER.peer, FOUNDER.peer}), STRANGERS[0].peer
    slot = Expected(members, frozenset({key}), {key: "here:1"}, current=True)
    assert table.expect(slot) == [key]
    first = table.of(key)
    assert (first.address, table.is_dialled(key, first)) == ("here:1", True)
    assert table.expect(slot) == []
    table.expect(Expected(members, current=True))
    assert not table.is_dialled(key)
    assert table.expect(slot) == [key]
    assert table.is_dialled(key, table.of(key))
    assert not table.is_dialled(key, first), "whoever still dials it for the slot that it lost must end"
