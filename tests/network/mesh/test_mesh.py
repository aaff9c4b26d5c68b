"""Who meets whom: peers of one run find each other, all others are told what does not fit."""

import asyncio
import dataclasses
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from troth.crypto import Digest, Identity, Seed, derive
from troth.network.manifest.builder import ManifestOptions, draft
from troth.network.manifest.manifest import Founder, Manifest, ManifestError
from troth.network.mesh.inbox import Inbox
from troth.network.mesh.mesh import Mesh, _Neighbour
from troth.network.mesh.session import VERSION, Hello, delegation_bytes
from troth.network.node.events import StepEvent
from troth.network.node.node import Node, Options
from troth.network.transport.base import Lane, Limits
from troth.network.transport.tcp import TcpTransport

IDS = sorted((Identity.from_secret(Seed(derive(0, "mesh", k))) for k in range(3)), key=lambda one: one.peer)
RUN, OTHER = Digest(b"r" * 32), Digest(b"o" * 32)
HELLO: dict[str, Any] = {
    "version": VERSION,
    "run": RUN,
    "sections": {"task": b"t" * 32, "training": b"n" * 32},
    "delegation": None,
}


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class _Pair:
    """Two meshes, of the first two identities unless something else is said of the second."""

    def __init__(self, *, dials_as: Identity = IDS[1], **said: Any) -> None:
        self._dials_as = dials_as
        self._said = said

    async def __aenter__(self) -> "_Pair":
        address = free_address()
        self.inboxes = [Inbox(1 << 20), Inbox(1 << 20)]
        transports = [self._transport(IDS[0]), self._transport(self._dials_as)]
        await transports[0].listen(address)
        first = Hello(member=IDS[0].peer, **HELLO)
        second = Hello(**{**HELLO, "member": IDS[1].peer, **self._said})
        addresses = {IDS[0].peer: address, IDS[1].peer: ""}
        self.meshes = [
            Mesh(transport, hello, identity.peer, addresses, inbox, hold_s=1.0)
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
    def _transport(identity: Identity) -> TcpTransport:
        return TcpTransport(identity, Limits(1 << 16, 1 << 20, 1 << 22), admits=lambda _: True)

    async def until(self, what: Any) -> None:
        async with asyncio.timeout(10):
            while not what():
                await asyncio.sleep(0.01)


def test_whoever_hangs_up_and_cannot_be_dialled_is_gone_until_it_is_back() -> None:
    """[Q9] Not who was never here, nor who gave no address; and whoever waits for a message is woken."""

    async def part() -> None:
        async with _Pair() as pair:
            assert not any(mesh.gone for mesh in pair.meshes)
            await pair.until(lambda: all(len(mesh.connected) == 1 for mesh in pair.meshes))
            third = _Neighbour("", connection=pair.meshes[1]._neighbours[IDS[0].peer].connection)
            pair.meshes[1]._neighbours[IDS[2].peer] = third  # somebody else is still there
            pair.meshes[1]._members |= {IDS[2].peer}
            pair.stop(0)
            await pair.until(lambda: pair.meshes[1].gone == {IDS[0].peer})
            assert pair.inboxes[1].get(time.monotonic() + 60) is None
            third.connection = None
            assert not pair.meshes[1].gone  # it may be its own line
        async with _Pair() as pair:
            await pair.until(lambda: all(len(mesh.connected) == 1 for mesh in pair.meshes))
            pair.stop(1)
            await pair.until(lambda: not pair.meshes[0].connected)
            assert not pair.meshes[0].gone

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
def test_who_does_not_fit_is_told_why(said: dict[str, Any], message: str) -> None:
    """On both sides: nobody wonders why nothing happens."""

    async def meet() -> None:
        async with _Pair(**said) as pair:
            await pair.until(lambda: all(len(mesh.refused) == 1 for mesh in pair.meshes))
            assert message in pair.meshes[0].refused[IDS[1].peer]
            assert "version" in pair.meshes[1].refused[IDS[0].peer] or message in pair.meshes[1].refused[IDS[0].peer]
            await pair.until(lambda: not any(mesh.connected for mesh in pair.meshes))

    asyncio.run(meet())


@pytest.mark.parametrize("vouches", [IDS[1], IDS[2]])
def test_a_new_key_needs_the_word_of_the_old_one(vouches: Identity) -> None:
    """[B1] Anybody can make a key; only its owner can hand on a seat."""
    delegation = vouches.sign(delegation_bytes(RUN, IDS[2].peer))

    async def meet() -> bool:
        async with _Pair(dials_as=IDS[2], delegation=delegation) as pair:
            await pair.until(lambda: pair.meshes[0].connected or pair.meshes[1].refused)
            return bool(pair.meshes[0].connected)

    assert asyncio.run(meet()) is (vouches is IDS[1])


def test_who_is_banned_is_cut_off_and_not_let_in_again() -> None:
    async def meet() -> None:
        async with _Pair() as pair:
            await pair.until(lambda: pair.meshes[0].connected)
            pair.meshes[0].ban(frozenset({IDS[1].peer}))
            await pair.until(lambda: IDS[0].peer in pair.meshes[1].refused)
            assert "banned" in pair.meshes[1].refused[IDS[0].peer]
            assert not pair.meshes[0].connected

    asyncio.run(meet())


def test_what_the_other_side_gives_as_its_reason_is_told_once_and_harmless() -> None:
    told: list[str] = []

    async def hear() -> None:
        async with _Pair() as pair:
            mesh = pair.meshes[0]
            mesh._told = told.append
            await pair.until(lambda: mesh.connected)
            for why in ("\x1b[2J", "another reason"):
                mesh._note_refusal(IDS[1].peer, why)
            assert mesh.refused == {IDS[1].peer: "another reason"}

    asyncio.run(hear())
    assert len(told) == 1
    assert told[0].isprintable()


class _Silent:
    def stepped(self, event: StepEvent) -> None: ...

    def note(self, text: str) -> None: ...


def test_a_peer_with_another_manifest_ends_and_names_the_difference(tmp_path: Path) -> None:
    """Rather than to wait for ever for people who will never take it."""
    founders = tuple(Founder(f"peer{k}", one.peer, free_address()) for k, one in enumerate(IDS))
    manifest = draft("quadratic", founders, ManifestOptions(steps=3, delta_s=1.0, compute_s=1.0, bulk_s=0.5)).manifest
    other = dataclasses.replace(manifest, steps=6)
    raised: dict[int, str] = {}

    def live(number: int, mine: Manifest) -> None:
        options = Options(tmp_path / str(number), listen=founders[number].address, founding_s=3.0)
        try:
            Node(mine, IDS[number], options, _Silent()).live()
        except ManifestError as error:
            raised[number] = str(error)

    threads = [
        threading.Thread(target=live, args=(number, other if number == 2 else manifest), daemon=True)
        for number in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in reversed(threads):
        thread.join(timeout=60)
    assert raised.keys() == {2}, "two of three fit, and train"
    assert "peer0, peer1 cannot train with this peer" in raised[2]
    assert "the manifests differ in training options; everybody needs the same run.toml" in raised[2]
    assert all((tmp_path / str(number) / "model.json").exists() for number in (0, 1))
