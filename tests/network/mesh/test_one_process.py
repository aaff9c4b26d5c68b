"""Goodbyes, and one process for each key: peers that leave are gone at once, copies of a key are refused, liars stop nobody."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.network.mesh.test_mesh import HELLO, RUN, free_address
from troth.crypto import Identity, PeerId, Seed, derive
from troth.network import mesh
from troth.network.mesh import Inbox, KeyInUseError, Mesh
from troth.network.neighbour import (
    CONTROL_SESSION,
    Goodbye,
    Hello,
    KeyInUse,
    Refused,
    SessionMessage,
    Standing,
    delegation_bytes,
    encode_session_message,
)
from troth.network.transport.base import Lane, TransportLimits
from troth.network.transport.connection import StreamConnection
from troth.network.transport.tcp import TcpTransport

IDS = sorted((Identity.from_secret(Seed(derive(0, "one process", k))) for k in range(4)), key=lambda one: one.peer)
BEGUN = Standing(ready=True, begun=True, step=0)


class _Peer:
    """One peer with a mesh of its own."""

    def __init__(self, identity: Identity, addresses: dict[PeerId, str], process: bytes, liars: int, here: str) -> None:
        self.identity = identity
        self.inbox = Inbox(1 << 20)
        self.notes: list[str] = []
        self._here = here
        self._limits = TransportLimits(1 << 16, 1 << 20, 1 << 22, ping_s=0.2, idle_s=5.0)
        self._transport = TcpTransport(identity, self._limits)
        hello = Hello(**{**HELLO, "member": identity.peer, "process": process})
        self.mesh = Mesh(
            self._transport,
            hello,
            identity.peer,
            addresses,
            self.inbox,
            hold_s=1.0,
            liars=liars,
            note=self.notes.append,
        )
        self._task: asyncio.Task[None]

    async def __aenter__(self) -> "_Peer":
        if self._here:
            await self._transport.listen(self._here)
        self._task = asyncio.create_task(self.mesh.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def vanish(self) -> None:
        """Lose power: nothing is closed, and nothing is said any more."""
        for connection in self._transport._pool.connections:
            for timer in (connection._ticker, connection._deadline):
                if timer is not None:
                    timer.cancel()
            assert connection._transport is not None
            connection._transport.pause_reading()

    def stopped_by(self) -> Exception | None:
        try:
            self.inbox.check()
        except KeyInUseError as why:
            return why
        return None


class _Run:
    """Members of one run on this machine; all listen, unless it is said that one does not."""

    def __init__(self, members: int, *, liars: int = 0, hidden: int | None = None) -> None:
        self.ids = IDS[:members]
        self.here = ["" if k == hidden else free_address() for k in range(members)]
        self.addresses = {one.peer: address for one, address in zip(self.ids, self.here, strict=True)}
        self._liars = liars

    def peer(self, number: int, process: bytes = b"", *, listens: bool = True) -> _Peer:
        process = (process or b"%d" % number).ljust(32, b".")
        here = self.here[number] if listens else ""
        return _Peer(self.ids[number], self.addresses, process, self._liars, here)

    def stranger(self, identity: Identity) -> TcpTransport:
        return TcpTransport(identity, TransportLimits(1 << 16, 1 << 20, 1 << 22))


async def until(what: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not what():
            await asyncio.sleep(0.01)


async def all_connected(*peers: _Peer) -> None:
    await until(lambda: all(len(peer.mesh.connected) == len(peers) - 1 for peer in peers))


def play(members: int, part: Callable[[_Run, list[_Peer]], Awaitable[None]], **given: Any) -> None:
    """Let these members meet, and play the part."""

    async def meet() -> None:
        run = _Run(members, **given)
        async with AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(run.peer(number)) for number in range(members)]
            await all_connected(*peers)
            await part(run, peers)

    asyncio.run(meet())


def say(connection: StreamConnection, message: SessionMessage) -> None:
    connection.send(Lane.CONTROL, CONTROL_SESSION + encode_session_message(message))


# Goodbyes


def test_a_peer_that_says_goodbye_is_gone_at_once_and_its_messages_are_taken_first() -> None:
    """[Q9] Nobody waits for a dial to fail; and a value that it sent before still counts."""

    async def part(_run: _Run, peers: list[_Peer]) -> None:
        leaving, staying = peers[2], peers[0]
        leaving.mesh.post(staying.identity.peer, Lane.CONTROL, b"last words")
        leaving.mesh.leave()
        await until(lambda: leaving.identity.peer not in staying.mesh.connected)
        assert staying.mesh.gone == frozenset(), "its last words are still to be taken"
        assert staying.inbox.get(time.monotonic() + 5) == (leaving.identity.peer, b"last words")
        assert staying.mesh.gone == {leaving.identity.peer}

    play(3, part)


def test_a_reader_that_waits_is_woken_by_a_goodbye() -> None:
    """[Q9] Else it would sit out the timeout."""

    async def part(_run: _Run, peers: list[_Peer]) -> None:
        waiting = asyncio.create_task(asyncio.to_thread(peers[0].inbox.get, time.monotonic() + 60))
        peers[2].mesh.leave()
        async with asyncio.timeout(10):
            assert await waiting is None
        assert peers[0].mesh.gone == {peers[2].identity.peer}

    play(3, part)


def test_a_peer_without_an_address_that_says_goodbye_is_gone_at_once() -> None:
    async def part(_run: _Run, peers: list[_Peer]) -> None:
        peers[2].mesh.leave()
        await until(lambda: peers[0].mesh.gone == {peers[2].identity.peer})

    play(3, part, hidden=2)


def test_a_goodbye_speaks_for_its_sender_alone() -> None:
    """A liar that says it to some is gone for those, until it is connected again; nobody else is."""

    async def part(run: _Run, peers: list[_Peer]) -> None:
        liar = run.ids[2]
        await peers[2].__aexit__()
        stranger = run.stranger(liar)
        connection = await stranger.dial(run.here[0], run.ids[0].peer)
        connection.recognise(known=True)
        say(connection, Hello(**{**HELLO, "member": liar.peer}))
        await until(lambda: liar.peer in peers[0].mesh.connected)
        say(connection, Goodbye())
        await until(lambda: peers[0].mesh.gone == {liar.peer})
        assert peers[0].mesh.connected == {run.ids[1].peer}
        again = await stranger.dial(run.here[0], run.ids[0].peer)
        again.recognise(known=True)
        say(again, Hello(**{**HELLO, "member": liar.peer}))
        await until(lambda: peers[0].mesh.gone == frozenset())
        await stranger.close()

    play(3, part)


def test_members_that_never_came_are_gone_when_the_run_begins() -> None:
    """[Q9] Nobody waits for them in the first step, though they have no address to dial; and they count when they come."""

    async def meet() -> None:
        run = _Run(4, hidden=3)
        async with run.peer(0) as one, run.peer(1) as other, run.peer(2) as third:
            await all_connected(one, other, third)
            assert one.mesh.gone == frozenset()
            one.mesh.stand(BEGUN)
            assert one.mesh.gone == {run.ids[3].peer}
            async with run.peer(3):
                await until(lambda: one.mesh.gone == frozenset())

    asyncio.run(meet())


# One process for each key


def test_a_second_process_is_refused_and_both_are_told() -> None:
    """[Q6] Two would sign the same slots. The first is not disturbed."""

    async def part(run: _Run, peers: list[_Peer]) -> None:
        async with run.peer(2, b"a copy", listens=False) as copy:
            await until(copy.stopped_by)
            assert "key is in use" in str(copy.stopped_by())
            await until(lambda: peers[2].notes)
            assert "another process tried" in peers[2].notes[0]
            assert peers[2].stopped_by() is None
            assert all(len(peer.mesh.connected) == 2 for peer in peers)

    play(3, part)


@pytest.mark.long
def test_a_quick_restart_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """[B1] After a power cut the old connection looks alive, but nothing comes from there."""
    monkeypatch.setattr(mesh, "_ALIVE_S", 0.8)

    me = IDS[2].peer

    async def part(run: _Run, peers: list[_Peer]) -> None:
        peers[2].vanish()
        async with run.peer(2, b"after the power cut", listens=False) as again:
            await until(lambda: all(peer.mesh._neighbours.of(me).process.startswith(b"after") for peer in peers[:2]))
            assert again.stopped_by() is None

    play(3, part)


@pytest.mark.parametrize("keys", [1, 5])
def test_one_liar_stops_nobody_with_as_many_keys_as_it_likes(keys: int) -> None:
    """It may delegate its seat to any number of keys: its word counts once, and no table grows with them."""

    async def part(run: _Run, peers: list[_Peer]) -> None:
        liar, victim = run.ids[1], peers[0]
        for number in range(keys):
            key = Identity.from_secret(Seed(derive(0, "successor", number)))
            stranger = run.stranger(key)
            connection = await stranger.dial(run.here[0], run.ids[0].peer)
            connection.recognise(known=True)
            delegation = liar.sign(delegation_bytes(RUN, key.peer))
            say(connection, Hello(**{**HELLO, "member": liar.peer, "delegation": delegation}))
            say(connection, KeyInUse())
            say(connection, Refused("no", key_in_use=True))
            await connection.closed()
            await stranger.close()
        await until(lambda: len(list(victim.mesh._neighbours)) == 2)
        assert victim.stopped_by() is None
        assert victim.notes == []
        assert victim.mesh.refused == {}

    play(3, part, liars=1)
