"""libp2p on the loopback: peers find each other in the DHT, and meet through a relay."""

import asyncio
import os
import secrets
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from importlib import import_module
from itertools import permutations
from math import inf
from typing import Any, TypeVar

import pytest

from tests.nettest.libp2p_loopback import LIMITS, MB, RUN, meet, node_of, peer
from tests.network.transport.endpoints import run as run_to_the_end
from troth.crypto.identity import Identity
from troth.network.mesh import Inbox, Mesh
from troth.network.neighbour import VERSION, Hello
from troth.network.transport import libp2p
from troth.network.transport.base import Lane, ListenError, LocalPeer, UnreachableError
from troth.network.transport.libp2p import Libp2pOptions, Libp2pTransport
from troth.network.transport.libp2p_addresses import LASTS_S, dht_key, encode_peer_record, libp2p_name, load_hivemind

ANYWHERE = "127.0.0.1:0"
BIG = os.urandom(20 * MB)
Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """In time, and without leaving tasks or files behind."""
    load_hivemind()  # it keeps some files open for itself
    return run_to_the_end(main, within_s=60.0)


# Finding each other


def test_peers_find_each_other_in_the_dht() -> None:
    async def main() -> None:
        keys = [Identity.generate() for _ in range(4)]
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(peer(keys[0]))
            intro = await first.listen(ANYWHERE)
            peers = [first]
            for key in keys[1:]:
                one = await stack.enter_async_context(peer(key, initial_peers=[intro]))
                await one.listen(ANYWHERE)
                peers.append(one)
            for a, b in permutations(range(4), 2):
                near, far = await meet(peers[a], peers[b], "dht:" if a < b else "", keys[b].peer)
                near.send(Lane.CONTROL, b"found you")
                assert await far.receive() == (Lane.CONTROL, b"found you")
            with pytest.raises(UnreachableError, match="nobody in the DHT knows"):
                await peers[1].dial("dht:", Identity.generate().peer)

    run(main())


def test_a_clock_that_is_wrong_is_told_by_those_one_enters_by(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with peer() as first:
            intro = await first.listen(ANYWHERE)
            async with peer(initial_peers=[intro]) as right:
                await right.listen(ANYWHERE)
            seconds = import_module("hivemind.dht.protocol")
            monkeypatch.setattr(seconds, "get_dht_time", lambda: time.time() - 1000)  # of the other side
            async with peer(initial_peers=[intro]) as wrong:
                with pytest.raises(ListenError, match=r"clock is 1000 s ahead of .* set the clock"):
                    await wrong.listen(ANYWHERE)

    run(main())


def test_forged_records_are_neither_kept_nor_believed() -> None:
    """A node of the DHT that keeps to no rule: it stores and serves lies about honest peers, made to outlast the truth."""

    async def main() -> None:
        bob, absent, mallory = Identity.generate(), Identity.generate(), Identity.generate()
        async with peer() as first:
            intro = await first.listen(ANYWHERE)
            async with (
                peer(bob, initial_peers=[intro]) as listener,
                peer(initial_peers=[intro]) as dialler,
                peer(mallory, initial_peers=[intro]) as liar,
            ):
                await listener.listen(ANYWHERE)
                trap = (await liar.listen(ANYWHERE)).rpartition("/p2p/")[0]
                await dialler.listen(ANYWHERE)
                until = time.time() + 2 * LASTS_S - 5
                node_of(liar).dht.protocol.record_validator = None
                for victim in (bob, absent):
                    lie = bytearray(encode_peer_record(mallory, RUN, until, [trap]))
                    lie[64:96] = victim.peer
                    await node_of(liar).dht.store(dht_key(RUN, victim.peer), bytes(lie), until)
                    assert await node_of(liar).dht.get(dht_key(RUN, victim.peer), latest=True) == (bytes(lie), until)
                for nonsense in ({}, {None: bytes(lie)}):  # a dictionary where a record should be, for ever
                    _serve_dictionary(liar, dht_key(RUN, bob.peer), nonsense)
                    assert await node_of(dialler).look_up(bob.peer, inf) == node_of(listener).published
                near, far = await meet(dialler, listener, "dht:", bob.peer)
                near.send(Lane.CONTROL, b"you are you")
                assert await far.receive() == (Lane.CONTROL, b"you are you")
                with pytest.raises(UnreachableError, match="nobody in the DHT knows"):
                    await dialler.dial("dht:", absent.peer)
                kept = [item.value for _, item in node_of(first).dht.protocol.storage.items()]
                assert any(bob.peer in value for value in kept)  # the truth
                assert not any(absent.peer in value for value in kept)

    run(main())


def _serve_dictionary(liar: Libp2pTransport, key: bytes, entries: dict[None, bytes]) -> None:
    later = time.time() + 1e6
    dictionary = import_module("hivemind.dht.storage").DictionaryDHTValue()
    for subkey, value in entries.items():
        dictionary.store(subkey, value, later)
    name = import_module("hivemind.dht.routing").DHTID.generate(key)
    assert node_of(liar).dht.protocol.storage.store(name, dictionary, later + len(entries))


def test_names_agree_with_libp2p() -> None:
    identity = Identity.generate()

    async def main() -> None:
        async with peer(identity) as listener:
            address = await listener.listen(ANYWHERE)
            assert node_of(listener).p2p.peer_id.to_base58() == libp2p_name(identity.peer) == address.rpartition("/")[2]
            assert (
                import_module("base58").b58decode(libp2p_name(identity.peer))
                == node_of(listener).p2p.peer_id.to_bytes()
            )

    run(main())


# A relay


def test_peers_that_listen_nowhere_meet_through_a_relay() -> None:
    async def main() -> None:
        bob = Identity.generate()
        async with peer(serves_relay=True) as relay:
            public = await relay.listen(ANYWHERE)
            async with peer(relays=[public]) as dialler, peer(bob, relays=[public]) as listener:
                address = await listener.listen("")
                assert address.startswith(f"{public}/p2p-circuit/p2p/")
                await dialler.listen("")
                for where in (address, "dht:"):
                    near, far = await meet(dialler, listener, where, bob.peer)
                    assert near.peer == bob.peer
                    for end, other in ((near, far), (far, near)):
                        end.send(Lane.BULK, BIG)
                        end.send(Lane.CONTROL, b"through others")
                        heard = [await other.receive(), await other.receive()]
                        assert heard == [(Lane.CONTROL, b"through others"), (Lane.BULK, BIG)]

    run(main())


def test_a_relay_that_does_not_serve_is_named_as_the_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libp2p, "_RESERVE_S", 2.0)
    monkeypatch.setattr(libp2p, "_RELAY_PATIENCE_S", 3.0)

    async def main() -> None:
        nowhere = f"/ip4/127.0.0.1/tcp/1/p2p/{libp2p_name(Identity.generate().peer)}"
        async with peer(relays=[nowhere]) as hidden:
            with pytest.raises(ListenError, match="no relay took this peer"):
                await hidden.listen("")

    run(main())


def test_a_relay_that_passes_on_too_little_is_named_as_the_trouble() -> None:
    """Every daemon relays 128 KiB for anybody: enough to be introduced, not to train."""

    async def main() -> None:
        async with peer() as small:
            public = await small.listen(ANYWHERE)
            async with peer(relays=[public]) as hidden:
                with pytest.raises(ListenError, match="passes on only 131072 bytes"):
                    await hidden.listen("")

    run(main())


def test_a_mesh_comes_about_among_peers_that_know_only_keys() -> None:
    """One peer is public and relays, one can be dialled, two can not; the manifest says `dht:` for each."""

    async def main() -> None:
        keys = [Identity.generate() for _ in range(4)]
        members = {key.peer: "dht:" for key in keys}
        inboxes = [Inbox(room=MB) for _ in keys]
        public: list[str] = []
        async with asyncio.TaskGroup() as group:
            meshes, running = [], []
            for number, (key, inbox) in enumerate(zip(keys, inboxes, strict=True)):
                hidden = number >= 2
                transport = Libp2pTransport(
                    LocalPeer(key, LIMITS, RUN, lambda _: True),
                    Libp2pOptions(tuple(public), relays=tuple(public) if hidden else (), serves_relay=number == 0),
                )
                address = await transport.listen("" if hidden else ANYWHERE)
                public = public or [address]
                hello = Hello(VERSION, RUN, {}, key.peer, None, secrets.token_bytes(32))
                meshes.append(Mesh(transport, hello, key.peer, members, inbox, hold_s=1.0))
                running.append(group.create_task(meshes[-1].run()))
            while not all(len(mesh.connected) == 3 for mesh in meshes):
                await asyncio.sleep(0.05)
            for mesh in meshes:
                for member in members:
                    mesh.post(member, Lane.BULK, BIG[:MB])
            for inbox in inboxes:
                heard = [await asyncio.to_thread(inbox.get, time.monotonic() + 20) for _ in range(3)]
                assert all(one is not None and one[1] == BIG[:MB] for one in heard)
            for task in running:
                task.cancel()

    run(main())
