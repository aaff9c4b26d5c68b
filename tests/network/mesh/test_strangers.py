"""Strangers on the network: any key may connect to a run whose door is open, and none stops, fills or crowds out a member."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.network.mesh.test_mesh import HELLO, free_address
from tests.network.mesh.test_one_process import say, until
from troth.crypto import Identity, PeerId, Seed, derive
from troth.network import neighbour as neighbour_module
from troth.network.mesh import Inbox, Mesh
from troth.network.neighbour import (
    CONTROL_PACKET,
    STRANGERS_ROOM,
    ExpectedConnections,
    Hello,
    KeyInUse,
    Neighbours,
    Refused,
    delegation_bytes,
)
from troth.network.transport.base import Lane, TransportLimits, UnreachableError
from troth.network.transport.connection import StreamConnection
from troth.network.transport.tcp import TcpTransport

IDS = sorted((Identity.from_secret(Seed(derive(0, "strangers", k))) for k in range(8)), key=lambda one: one.peer)
MEMBER, FOUNDER, *STRANGERS = IDS
ROOM = 1 << 22


class _Member:
    """A member of a run whose door is open; it listens, and knows that one other founder."""

    def __init__(self, **limits: int) -> None:
        self.limits = TransportLimits(1 << 20, 1 << 20, 1 << 22, **limits)
        self.address = free_address()
        self.inbox = Inbox(ROOM)
        self.notes: list[str] = []
        self._guests: list[TcpTransport] = []

    async def __aenter__(self) -> "_Member":
        transport = TcpTransport(MEMBER, self.limits)
        await transport.listen(self.address)
        hello = Hello(**{**HELLO, "member": MEMBER.peer})
        addresses = {MEMBER.peer: self.address, FOUNDER.peer: ""}
        given: dict[str, Any] = {"hold_s": 1.0, "liars": 1, "strangers": True, "note": self.notes.append}
        self.mesh = Mesh(transport, hello, MEMBER.peer, addresses, self.inbox, **given)
        self.mesh.expect(ExpectedConnections(frozenset(addresses)))
        self._task = asyncio.create_task(self.mesh.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for guest in self._guests:
            await guest.close()

    async def dialled_by(self, identity: Identity) -> StreamConnection:
        self._guests.append(TcpTransport(identity, self.limits))
        connection = await self._guests[-1].dial(self.address, MEMBER.peer)
        connection.recognise(known=True)
        return connection

    async def greeted_by(self, identity: Identity, **said: Any) -> StreamConnection:
        connection = await self.dialled_by(identity)
        say(connection, Hello(**{**HELLO, "member": identity.peer, "process": identity.peer, **said}))
        await until(lambda: identity.peer in self.mesh.connected)
        return connection


def play(part: Callable[[_Member], Awaitable[None]], **limits: int) -> None:
    async def meet() -> None:
        async with AsyncExitStack() as stack:
            await part(await stack.enter_async_context(_Member(**limits)))

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


def end_of(member: _Member, one: Identity) -> StreamConnection:
    """The member's end of the connection."""
    (found,) = [connection for connection in member.mesh._neighbours.connections if connection.peer == one.peer]
    assert isinstance(found, StreamConnection)
    return found


@pytest.mark.parametrize("lane", Lane)
def test_a_stranger_may_say_no_more_than_a_greeting_at_a_time(lane: Lane) -> None:
    """[M4] It is hung up on before memory is taken, however large the parts of a model are that members send each other."""

    async def part(member: _Member) -> None:
        stranger, founder = await member.greeted_by(STRANGERS[0]), await member.greeted_by(FOUNDER)
        long = CONTROL_PACKET + bytes(member.limits.most_unknown_bytes)
        for connection in (stranger, founder):
            connection.send(lane, long)
        assert "are allowed" in await stranger.closed()
        await until(lambda: member.inbox.holds(FOUNDER.peer))
        assert not member.inbox.holds(STRANGERS[0].peer)

    play(part)


def test_what_a_stranger_floods_us_with_stays_outside() -> None:
    """[M4] Neither its connection nor its place in the inbox takes more than a few greetings' worth, whatever it sends."""

    async def part(member: _Member) -> None:
        stranger = await member.greeted_by(STRANGERS[0])
        far, most = end_of(member, STRANGERS[0]), 0
        for _ in range(2000):
            stranger.send(Lane.CONTROL, CONTROL_PACKET + bytes(1000))
        await until(lambda: not member.inbox.has_room(STRANGERS[0].peer, STRANGERS_ROOM))
        for _ in range(100):
            await asyncio.sleep(0)
            most = max(most, far.waiting_bytes)
        assert most <= 2 * member.limits.most_unknown_bytes
        taken = 0
        while (heard := member.inbox.get(0.0)) is not None:
            taken += len(heard[1])
        assert taken <= STRANGERS_ROOM + 1000

    play(part)


def test_what_a_stranger_sent_ends_with_its_connection() -> None:
    """[M4] Else coming, sending and going would fill memory, and hold up the protocol long after the stranger is gone. What a
    founder said counts, though its machine stopped."""

    async def part(member: _Member) -> None:
        for one in (STRANGERS[0], FOUNDER):
            near = await member.greeted_by(one)
            for _ in range(3):
                near.send(Lane.CONTROL, CONTROL_PACKET + bytes(100))
            await until(lambda one=one: member.inbox.holds(one.peer))  # type: ignore[misc]
            await until(lambda one=one: member.inbox._taken[one.peer] == 3 * (100 + 256))  # type: ignore[misc]
            near.close()
            await until(lambda one=one: one.peer not in member.mesh.connected)  # type: ignore[misc]
        assert not member.inbox.holds(STRANGERS[0].peer)
        assert member.inbox.holds(FOUNDER.peer)

    play(part)


@pytest.mark.long
def test_a_stranger_that_hangs_up_while_nobody_reads_is_noticed() -> None:
    """[M4] Its messages wait, and so does its reader; the end of its connection ends both."""

    async def part(member: _Member) -> None:
        near = await member.greeted_by(STRANGERS[0])
        for _ in range(2000):
            near.send(Lane.CONTROL, CONTROL_PACKET + bytes(1000))
        await until(lambda: end_of(member, STRANGERS[0]).reading_paused)
        assert isinstance(near, StreamConnection)
        near.abandon()
        await until(lambda: STRANGERS[0].peer not in member.mesh.connected)
        assert member.inbox.get(0.0) is None

    play(part)


def test_nothing_after_the_greeting_is_heard_before_it() -> None:
    """[M4] A member sends parts as soon as it has said hello; they wait until it is known."""

    async def part(member: _Member) -> None:
        connection = await member.dialled_by(FOUNDER)
        say(connection, Hello(**{**HELLO, "member": FOUNDER.peer, "process": FOUNDER.peer}))
        part_of_a_model = bytes(member.limits.most_bulk_bytes)
        connection.send(Lane.BULK, part_of_a_model)
        await until(lambda: member.inbox.holds(FOUNDER.peer))
        assert member.inbox.get(0.0) == (FOUNDER.peer, part_of_a_model)

    play(part)


def test_answers_to_a_stranger_that_never_reads_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection stays, since it may be slow; a founder that never reads is hung up on as ever."""
    most, answer = 1 << 20, bytes(1 << 18)
    monkeypatch.setattr(neighbour_module, "STRANGERS_QUEUE", most)

    async def part(member: _Member) -> None:
        queued = dict[PeerId, int]()
        for one in (STRANGERS[0], FOUNDER):
            near = await member.greeted_by(one)
            far = end_of(member, one)
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


@pytest.mark.long
def test_all_strangers_together_have_so_much_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """[M4] Beyond that, whoever reads least is hung up on; a stranger that reads is not."""
    monkeypatch.setattr(neighbour_module, "STRANGERS_QUEUES", 1 << 20)

    async def part(member: _Member) -> None:
        reading, *others = STRANGERS[:3]
        await member.greeted_by(reading)
        ears = {one: await member.greeted_by(one) for one in others}
        for near in ears.values():
            near._transport.pause_reading()  # type: ignore[union-attr]
        ends = {one: end_of(member, one) for one in (reading, *others)}
        while all(ends[one].up for one in others):
            for one in others:
                member.mesh.post(one.peer, Lane.CONTROL, bytes(1 << 19))
                assert sum(end.queued_bytes for end in ends.values() if end.up) <= (1 << 20) + 1000
                await asyncio.sleep(0)
            member.mesh.post(reading.peer, Lane.CONTROL, b"an answer")
            await until(lambda: not ends[reading].queued_bytes)
        assert ends[reading].up

    play(part)


@pytest.mark.long
def test_a_stranger_that_was_answered_this_moment_makes_no_room_for_a_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """[M4] Each of the crowd leaves a little less unread than an honest stranger is told at once, and it was hung up on."""
    monkeypatch.setattr(neighbour_module, "STRANGERS_QUEUES", 1 << 20)

    async def part(member: _Member) -> None:
        honest, *crowd = STRANGERS[:3]
        for one in (*crowd, honest):
            near = await member.greeted_by(one)
            near._transport.pause_reading()  # type: ignore[union-attr]
        ends = {one: end_of(member, one) for one in (honest, *crowd)}
        for end in ends.values():
            monkeypatch.setattr(end, "_writable", False)  # the other side reads nothing
        for one in crowd:
            member.mesh.post(one.peer, Lane.CONTROL, bytes(500_000))
        member.mesh.post(honest.peer, Lane.CONTROL, bytes(510_000))
        assert ends[honest].up
        assert [ends[one].up for one in crowd] == [False, True]

    play(part)


def test_a_crowd_does_not_keep_a_member_from_coming_back() -> None:
    """[B8, M4] A founder's successor key has no seat until it is back; the crowd crowds out itself."""

    async def part(member: _Member) -> None:
        successor, *crowd = STRANGERS
        delegation = FOUNDER.sign(delegation_bytes(HELLO["run"], successor.peer))
        await member.greeted_by(successor, member=FOUNDER.peer, delegation=delegation)
        for stranger in crowd:
            await member.greeted_by(stranger)
        await until(lambda: len(member.mesh.connected) == 3)
        assert successor.peer in member.mesh.connected

    play(part, most_unknown=2)


def test_a_seat_has_one_successor_at_a_time() -> None:
    """[M4] A member can delegate its seat to as many keys as it likes; the newest is known, the others are strangers."""

    async def part(member: _Member) -> None:
        for successor in STRANGERS[:3]:
            delegation = FOUNDER.sign(delegation_bytes(HELLO["run"], successor.peer))
            await member.greeted_by(successor, member=FOUNDER.peer, delegation=delegation)
            known = [one.peer for one in STRANGERS[:3] if member.mesh._neighbours.knows(one.peer)]
            assert known == [successor.peer]
            assert end_of(member, successor).known
        assert not end_of(member, STRANGERS[0]).known

    play(part)


def test_whoever_is_asked_may_answer_at_length() -> None:
    """[M4] A peer that comes back does not expect members that came in meanwhile; it asks those that a quorum's records name."""

    async def part(member: _Member) -> None:
        newcomer = STRANGERS[0]
        near = await member.greeted_by(newcomer)
        assert not end_of(member, newcomer).known
        member.mesh.post(newcomer.peer, Lane.CONTROL, b"records, please", asks=True)
        near.send(Lane.BULK, bytes(1 << 19))
        await until(lambda: member.inbox.holds(newcomer.peer))

    play(part)


def test_a_candidate_or_member_is_known_and_a_stranger_is_not() -> None:
    """[M4] What a key has shown: a slot, a seat, or once a seat."""
    table = Neighbours(MEMBER.peer, {FOUNDER.peer: ""})
    stranger = STRANGERS[0].peer
    assert table.most_waiting(stranger) == STRANGERS_ROOM
    assert table.most_waiting(FOUNDER.peer) is None
    for given in (
        {"members": frozenset({stranger})},
        {"candidates": frozenset({stranger})},
        {"addresses": {stranger: ""}},
    ):
        seated: dict[str, Any] = {"members": frozenset[PeerId](), **given}
        table.expect(ExpectedConnections(**seated))
        assert table.most_waiting(stranger) is None


def test_whoever_was_a_member_is_not_dialled_for_ever() -> None:
    """A stranger says where it is dialled: it could come in, go away, and have everyone knock at somebody else's door."""

    async def part(member: _Member) -> None:
        here, newcomer = free_address(), STRANGERS[0]
        seen: list[str] = []

        async def dial(address: str, _peer: PeerId) -> StreamConnection:
            seen.append(address)
            raise UnreachableError("nobody is there")

        member.mesh._transport.dial = dial  # type: ignore[method-assign, assignment]
        founders = frozenset({MEMBER.peer, FOUNDER.peer})
        inside = ExpectedConnections(founders | {newcomer.peer}, addresses={newcomer.peer: here})
        outside = ExpectedConnections(founders, addresses={newcomer.peer: here})
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
    slot = ExpectedConnections(members, frozenset({key}), {key: "here:1"})
    assert table.expect(slot) == [key]
    first = table.of(key)
    assert (first.address, table.is_dialled(key, first)) == ("here:1", True)
    assert table.expect(slot) == []
    table.expect(ExpectedConnections(members))
    assert not table.is_dialled(key)
    assert table.expect(slot) == [key]
    assert table.is_dialled(key, table.of(key))
    assert not table.is_dialled(key, first), "whoever still dials it for the slot that it lost must end"


def test_what_a_stranger_sent_on_an_older_connection_ends_with_it_too() -> None:
    """[M4] With a newer one that comes and goes, the member would keep 64 KiB of each key, and keys cost nothing."""

    async def part(member: _Member) -> None:
        guest = STRANGERS[0]
        older = await member.greeted_by(guest)
        newer = await member.dialled_by(guest)
        say(newer, Hello(**{**HELLO, "member": guest.peer, "process": guest.peer}))
        await until(lambda: len(member.mesh._greeted) == 2)
        newer.close()
        await until(lambda: len(member.mesh._greeted) == 1)
        older.send(Lane.CONTROL, CONTROL_PACKET + bytes(1000))
        await until(lambda: member.inbox.holds(guest.peer))
        older.close()
        await until(lambda: not member.mesh._greeted)
        assert not member.inbox.holds(guest.peer)

    play(part)
