"""The mesh: peers of one run find each other, and all others are told why they do not fit."""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from troth.crypto import Digest, Identity, Seed, derive
from troth.network.mesh import Inbox, Mesh
from troth.network.neighbour import (
    CONTROL_SESSION,
    VERSION,
    ExpectedConnections,
    Goodbye,
    Hello,
    Refused,
    delegation_bytes,
    encode_session_message,
)
from troth.network.transport.base import Lane, TransportLimits
from troth.network.transport.tcp import TcpTransport

IDS = sorted((Identity.from_secret(Seed(derive(0, "mesh", k))) for k in range(3)), key=lambda one: one.peer)
RUN, OTHER = Digest(b"r" * 32), Digest(b"o" * 32)
HELLO: dict[str, Any] = {
    "version": VERSION,
    "run": RUN,
    "sections": {"task": b"t" * 32, "training": b"n" * 32},
    "delegation": None,
    "process": b"p" * 32,
}


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class _Pair:
    """Two meshes, of the first two identities unless something else is said of the second."""

    def __init__(
        self, *, dials_as: Identity = IDS[1], note: Callable[[str], None] = lambda _: None, **said: Any
    ) -> None:
        self._dials_as = dials_as
        self._note = note
        self._said = said

    async def __aenter__(self) -> "_Pair":
        address = self.address = free_address()
        self.inboxes = [Inbox(1 << 20), Inbox(1 << 20)]
        transports = [self.transport(IDS[0]), self.transport(self._dials_as)]
        await transports[0].listen(address)
        first = Hello(member=IDS[0].peer, **HELLO)
        second = Hello(**{**HELLO, "member": IDS[1].peer, **self._said})
        addresses = {IDS[0].peer: address, IDS[1].peer: ""}
        self.meshes = [
            Mesh(transport, hello, identity.peer, addresses, inbox, hold_s=1.0, note=self._note)
            for transport, hello, identity, inbox in zip(
                transports, (first, second), (IDS[0], self._dials_as), self.inboxes, strict=True
            )
        ]
        self._tasks = [asyncio.create_task(mesh.run()) for mesh in self.meshes]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop(self, number: int) -> None:
        self._tasks[number].cancel()

    @staticmethod
    def transport(identity: Identity) -> TcpTransport:
        return TcpTransport(identity, TransportLimits(1 << 16, 1 << 20, 1 << 22))

    async def until(self, what: Any) -> None:
        async with asyncio.timeout(10):
            while not what():
                await asyncio.sleep(0.01)


@pytest.mark.long
def test_a_peer_that_hangs_up_and_cannot_be_dialled_is_gone_until_it_is_back() -> None:
    """[Q9] A reader that waits for a message is woken; and not if it may be this peer's own connection that failed."""

    async def part() -> None:
        async with _Pair() as pair:
            await pair.until(lambda: all(len(mesh.connected) == 1 for mesh in pair.meshes))
            neighbours = pair.meshes[1]._neighbours
            third = neighbours.of(IDS[2].peer)
            third.connection = neighbours.of(IDS[0].peer).connection  # somebody else is still there
            pair.meshes[1].expect(ExpectedConnections(frozenset(one.peer for one in IDS)))
            pair.stop(0)
            await pair.until(lambda: pair.meshes[1].gone == {IDS[0].peer})
            assert pair.inboxes[1].get(time.monotonic() + 60) is None
            third.connection = None
            assert not pair.meshes[1].gone  # it may be its own connection that failed

    asyncio.run(part())


def test_peers_of_one_run_meet_and_hear_each_other() -> None:
    async def meet() -> None:
        async with _Pair() as pair:
            await pair.until(lambda: all(len(mesh.connected) == 1 for mesh in pair.meshes))
            pair.meshes[0].post(IDS[1].peer, Lane.CONTROL, b"small")
            pair.meshes[1].post(IDS[0].peer, Lane.BULK, b"large")
            for inbox, sender, message in ((pair.inboxes[1], IDS[0], b"small"), (pair.inboxes[0], IDS[1], b"large")):
                heard = await asyncio.to_thread(inbox.get, asyncio.get_running_loop().time() + 5)
                assert heard is not None
                assert (heard[0], bytes(heard[1])) == (sender.peer, message)

    asyncio.run(meet())


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"run": OTHER, "sections": {"task": b"t" * 32, "training": b"x" * 32}}, "the manifests differ in training"),
        ({"run": OTHER}, "the manifests differ in founders or nonce"),
        ({"version": VERSION + 1}, f"it speaks version {VERSION + 1}"),
        ({"member": IDS[2].peer}, "its key is not in this run"),
        ({"member": IDS[0].peer}, "it claims a seat that is not its own"),
    ],
)
def test_a_peer_that_does_not_fit_is_told_why(said: dict[str, Any], message: str) -> None:
    """On both sides: nobody wonders why nothing happens."""

    async def meet() -> None:
        async with _Pair(**said) as pair:
            await pair.until(lambda: all(len(mesh.refused) == 1 for mesh in pair.meshes))
            assert message in pair.meshes[0].refused[IDS[1].peer]
            assert "version" in pair.meshes[1].refused[IDS[0].peer] or message in pair.meshes[1].refused[IDS[0].peer]
            await pair.until(lambda: not any(mesh.connected for mesh in pair.meshes))

    asyncio.run(meet())


@pytest.mark.parametrize("signer", [IDS[1], IDS[2]])
def test_a_successor_key_needs_a_delegation_by_the_old_one(signer: Identity) -> None:
    """[B1] Anybody can make a key; only its owner can hand on a seat."""
    delegation = signer.sign(delegation_bytes(RUN, IDS[2].peer))

    async def meet() -> bool:
        async with _Pair(dials_as=IDS[2], delegation=delegation) as pair:
            await pair.until(lambda: pair.meshes[0].connected or pair.meshes[1].refused)
            return bool(pair.meshes[0].connected)

    assert asyncio.run(meet()) is (signer is IDS[1])


@pytest.mark.long
def test_a_banned_peer_is_cut_off_and_not_let_in_again() -> None:
    async def meet() -> None:
        async with _Pair() as pair:
            await pair.until(lambda: pair.meshes[0].connected)
            pair.meshes[0].ban(frozenset({IDS[1].peer}))
            await pair.until(lambda: IDS[0].peer in pair.meshes[1].refused)
            assert "banned" in pair.meshes[1].refused[IDS[0].peer]
            assert not pair.meshes[0].connected

    asyncio.run(meet())


def test_whoever_was_greeted_is_not_told_that_it_did_not_say_who_it_is() -> None:
    async def part() -> str:
        async with _Pair() as pair:
            pair.stop(1)
            peer = pair.transport(IDS[1])
            connection = await peer.dial(pair.address, IDS[0].peer)
            connection.recognise(known=True)
            for said in (Hello(member=IDS[1].peer, **HELLO), Goodbye()):
                connection.send(Lane.CONTROL, CONTROL_SESSION + encode_session_message(said))
            why = await connection.closed()
            await peer.close()
            return why

    assert "the session is over" in asyncio.run(part())


def test_a_reason_from_the_other_side_is_noted_once_and_harmless() -> None:
    notes: list[str] = []

    async def hear() -> None:
        async with _Pair(note=notes.append) as pair:
            pair.stop(1)
            mesh, stranger = pair.meshes[0], pair.transport(IDS[1])
            for why in ("\x1b[2J", "another reason"):
                connection = await stranger.dial(pair.address, IDS[0].peer)
                connection.recognise(known=True)
                connection.send(Lane.CONTROL, CONTROL_SESSION + encode_session_message(Refused(why)))
                await connection.closed()
            assert mesh.refused == {IDS[1].peer: "it refuses this peer: another reason"}
            await stranger.close()

    asyncio.run(hear())
    assert len(notes) == 1
    assert notes[0].isprintable()
