"""libp2p on the loopback: the promises of Transport, the DHT, and a relay between peers that listen nowhere."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib import import_module
from itertools import permutations
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.nettest.libp2p_loopback import LIMITS, MB, RUN, meet, peer
from tests.network.transport.endpoints import run as run_to_the_end
from troth.crypto.identity import Identity
from troth.errors import OperatorError
from troth.network.mesh.inbox import Inbox
from troth.network.mesh.mesh import Mesh
from troth.network.mesh.session import VERSION, Hello
from troth.network.transport.base import Lane, ListenError, UnreachableError
from troth.network.transport.libp2p import transport as libp2p
from troth.network.transport.libp2p.multiaddr import libp2p_name
from troth.network.transport.libp2p.peer_record import LASTS_S, dht_key, encode_peer_record
from troth.network.transport.libp2p.transport import Libp2pTransport

ANYWHERE = "127.0.0.1:0"
BIG = os.urandom(20 * MB)
Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """In time, and without leaving tasks or files behind."""
    libp2p._load()  # hivemind keeps some files open for itself
    return run_to_the_end(main, within_s=60.0)


# The promises of Transport


def test_messages_travel_both_ways_on_both_lanes() -> None:
    async def main() -> None:
        bob = Identity.generate()
        async with peer() as dialler, peer(bob) as listener:
            near, far = await meet(dialler, listener, await listener.listen(ANYWHERE), bob.peer)
            assert (near.peer, near.dialled, far.dialled) == (bob.peer, True, False)
            for end, other in ((near, far), (far, near)):
                assert end.send(Lane.CONTROL, b"a vote")
                assert await other.receive() == (Lane.CONTROL, b"a vote")
                assert end.send(Lane.BULK, b"a gradient")
                assert await other.receive() == (Lane.BULK, b"a gradient")

    run(main())


def test_big_messages_arrive_whole_and_control_overtakes_them() -> None:
    async def main() -> None:
        bob = Identity.generate()
        async with peer() as dialler, peer(bob) as listener:
            near, far = await meet(dialler, listener, await listener.listen(ANYWHERE), bob.peer)
            for end, other in ((near, far), (far, near)):
                for _ in range(3):
                    assert end.send(Lane.BULK, BIG)
                assert end.send(Lane.CONTROL, b"urgent")
                heard = [await other.receive() for _ in range(4)]
                assert heard[0] == (Lane.CONTROL, b"urgent")
                assert heard[1:] == [(Lane.BULK, BIG)] * 3

    run(main())


def test_four_peers_talk_all_to_all() -> None:
    async def main() -> None:
        keys = [Identity.generate() for _ in range(4)]
        async with AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(peer(key)) for key in keys]
            addresses = [await one.listen(ANYWHERE) for one in peers]
            lines = {}
            for a, b in permutations(range(4), 2):
                near, far = await meet(peers[a], peers[b], addresses[b], keys[b].peer)
                assert far.peer == keys[a].peer
                lines[a, b] = near, far
            part = BIG[: 2 * MB]
            for near, _ in lines.values():
                near.send(Lane.BULK, part)
                near.send(Lane.CONTROL, b"here")
            for _, far in lines.values():
                heard = [await far.receive(), await far.receive()]
                assert sorted(heard, key=str) == sorted([(Lane.BULK, part), (Lane.CONTROL, b"here")], key=str)

    run(main())


def test_another_key_than_the_expected_one_is_not_talked_to() -> None:
    async def main() -> None:
        async with peer() as dialler, peer() as listener:
            address = await listener.listen(ANYWHERE)
            bare = address.rpartition("/p2p/")[0]
            for where in (bare, address):
                with pytest.raises(UnreachableError, match="another key"):
                    await dialler.dial(where, Identity.generate().peer)

    run(main())


def test_a_key_that_is_not_admitted_is_told_so() -> None:
    async def main() -> None:
        bob, friend = Identity.generate(), Identity.generate()
        async with (
            peer(bob, admits=lambda who: who == friend.peer) as listener,
            peer() as stranger,
            peer(friend) as known,
        ):
            address = await listener.listen(ANYWHERE)
            with pytest.raises(UnreachableError, match="not admitted here"):
                await stranger.dial(address, bob.peer)
            _, far = await meet(known, listener, address, bob.peer)
            assert far.peer == friend.peer

    run(main())


def test_nobody_there() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        async with peer() as dialler:
            started = time.monotonic()
            for where in (
                f"127.0.0.1:{port}",
                f"/ip4/127.0.0.1/tcp/{port}",
                "/unix/run/docker.sock",
                "nonsense",
                "dht:",
            ):
                with pytest.raises(UnreachableError):
                    await dialler.dial(where, Identity.generate().peer)
            assert time.monotonic() - started < 20

    run(main())


def test_a_silent_host_costs_only_the_time_of_a_handshake() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            async with peer(limits=replace(LIMITS, handshake_s=1.0)) as dialler:
                started = time.monotonic()
                with pytest.raises(UnreachableError, match="within 1 s"):
                    await dialler.dial(f"127.0.0.1:{silent.getsockname()[1]}", Identity.generate().peer)
                assert time.monotonic() - started < 5.0

    run(main())


def test_the_other_side_reads_why_a_connection_was_closed() -> None:
    async def main() -> None:
        bob = Identity.generate()
        async with peer() as dialler, peer(bob) as listener:
            near, far = await meet(dialler, listener, await listener.listen(ANYWHERE), bob.peer)
            near.send(Lane.CONTROL, b"last words")
            near.close("enough")
            assert await far.receive() == (Lane.CONTROL, b"last words")
            assert await far.receive() is None
            assert "enough" in await far.closed()

    run(main())


def test_a_quiet_connection_stays_up_and_a_dead_one_goes_down() -> None:
    async def main() -> None:
        bob = Identity.generate()
        hasty = replace(LIMITS, idle_s=0.8, ping_s=0.2)
        async with peer(limits=hasty) as dialler, peer(bob, hasty) as listener:
            near, far = await meet(dialler, listener, await listener.listen(ANYWHERE), bob.peer)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2.5):
                    await near.closed()
            process = listener._daemon._process  # type: ignore[union-attr]
            os.kill(process.pid, signal.SIGSTOP)  # a machine that freezes: no end of the stream, no bytes
            try:
                async with asyncio.timeout(5.0):
                    assert "not heard" in await near.closed()
                    await far.closed()
            finally:
                os.kill(process.pid, signal.SIGCONT)

    run(main())


def test_who_does_not_read_stops_the_sender_and_nothing_overflows() -> None:
    async def main() -> None:
        bob = Identity.generate()
        narrow = replace(LIMITS, most_received_bytes=MB)
        async with peer() as dialler, peer(bob, narrow) as listener:
            near, far = await meet(dialler, listener, await listener.listen(ANYWHERE), bob.peer)
            sent = 0
            while near.send(Lane.BULK, BIG):
                sent += 1
                await asyncio.sleep(0)
            assert 6 <= sent <= 12  # 128 MB queued, and what the daemons hold in between
            assert "too slow" in await near.closed()
            assert far.bytes_in < 3 * len(BIG)

    run(main())


def test_listening_where_one_cannot_is_explained() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            for where, says in (
                (f"127.0.0.1:{taken.getsockname()[1]}", "the port is taken"),
                ("192.0.2.1:4001", "not an address of this machine"),
                ("example.org:4001", "write an IP address"),
                ("/ip4/127.0.0.1/udp/1/quic", "no address to listen on"),
            ):
                async with peer() as listener:
                    with pytest.raises(ListenError, match=says):
                        await listener.listen(where)

    run(main())


def test_without_hivemind_the_error_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr(libp2p, "import_module", missing)
    with pytest.raises(OperatorError, match=r"pip install 'troth\[libp2p\]'"):
        Libp2pTransport(Identity.generate(), LIMITS, lambda _: True, run=RUN)


def test_mistakes_in_addresses_are_explained() -> None:
    for wrong in ({"relays": ["/ip4/127.0.0.1/tcp/1"]}, {"initial_peers": ["127.0.0.1:1"]}, {"announce": ["me"]}):
        with pytest.raises(OperatorError, match="/ip4/203"):
            Libp2pTransport(Identity.generate(), LIMITS, lambda _: True, run=RUN, **wrong)  # type: ignore[arg-type]


def test_nothing_is_left_behind() -> None:
    """No process, no socket, no key."""

    async def main() -> tuple[int, Path]:
        async with peer() as listener:
            await listener.listen(ANYWHERE)
            daemon = listener._daemon
            assert daemon is not None
            assert [one.name for one in daemon.folder.iterdir() if "key" in one.name] == []
            assert daemon.folder.stat().st_mode & 0o777 == 0o700
            return daemon._process.pid, daemon.folder

    pid, folder = run(main())
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_daemon_ends_when_its_peer_was_killed() -> None:
    code = """
import asyncio
from tests.nettest.libp2p_loopback import peer
async def main():
    async with peer() as listener:
        await listener.listen("127.0.0.1:0")
        print(listener._daemon._process.pid, listener._daemon.folder, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        daemon, folder = killed.stdout.readline().split()
        killed.kill()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{daemon}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert Path(folder).exists()  # it could not remove that itself
    os.utime(folder, (0, 0))

    async def another() -> None:
        async with peer() as listener:
            await listener.listen(ANYWHERE)
            assert not Path(folder).exists()
            still = listener._daemon
            assert still is not None
            os.utime(still.folder, (0, 0))
            async with peer() as second:
                await second.listen(ANYWHERE)
            assert still.folder.exists()  # old, and in use

    run(another())


def test_a_daemon_that_dies_is_started_again() -> None:
    async def main() -> None:
        ann, bob = Identity.generate(), Identity.generate()
        async with peer(ann) as first:
            intro = await first.listen(ANYWHERE)
            async with peer(bob, initial_peers=[intro]) as listener, peer(initial_peers=[intro]) as dialler:
                address = await listener.listen(ANYWHERE)
                near, _ = await meet(dialler, listener, address, bob.peer)
                listener._daemon._process.kill()  # type: ignore[union-attr]
                await near.closed()
                while True:
                    try:
                        near, far = await meet(dialler, listener, "dht:", bob.peer)
                        break
                    except UnreachableError:
                        await asyncio.sleep(0.2)
                near.send(Lane.CONTROL, b"back")
                assert await far.receive() == (Lane.CONTROL, b"back")

    run(main())


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
                liar._dht.protocol.record_validator = None
                for victim in (bob, absent):
                    lie = bytearray(encode_peer_record(mallory, RUN, until, [trap]))
                    lie[64:96] = victim.peer
                    await liar._dht.store(dht_key(RUN, victim.peer), bytes(lie), until)
                    assert await liar._dht.get(dht_key(RUN, victim.peer), latest=True) == (bytes(lie), until)
                for nonsense in ({}, {None: bytes(lie)}):  # a dictionary where a record should be, for ever
                    _serve_dictionary(liar, dht_key(RUN, bob.peer), nonsense)
                    assert await dialler._look_up(bob.peer, inf) == listener.addresses
                near, far = await meet(dialler, listener, "dht:", bob.peer)
                near.send(Lane.CONTROL, b"you are you")
                assert await far.receive() == (Lane.CONTROL, b"you are you")
                with pytest.raises(UnreachableError, match="nobody in the DHT knows"):
                    await dialler.dial("dht:", absent.peer)
                kept = [item.value for _, item in first._dht.protocol.storage.items()]
                assert any(bob.peer in value for value in kept)  # the truth
                assert not any(absent.peer in value for value in kept)

    run(main())


def _serve_dictionary(liar: Libp2pTransport, key: bytes, entries: dict[None, bytes]) -> None:
    later = time.time() + 1e6
    dictionary = import_module("hivemind.dht.storage").DictionaryDHTValue()
    for subkey, value in entries.items():
        dictionary.store(subkey, value, later)
    name = import_module("hivemind.dht.routing").DHTID.generate(key)
    assert liar._dht.protocol.storage.store(name, dictionary, later + len(entries))


def test_names_agree_with_libp2p() -> None:
    identity = Identity.generate()

    async def main() -> None:
        async with peer(identity) as listener:
            address = await listener.listen(ANYWHERE)
            assert listener._p2p.peer_id.to_base58() == libp2p_name(identity.peer) == address.rpartition("/")[2]
            assert import_module("base58").b58decode(libp2p_name(identity.peer)) == listener._p2p.peer_id.to_bytes()

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
                    key,
                    LIMITS,
                    lambda _: True,
                    run=RUN,
                    initial_peers=public,
                    relays=public if hidden else (),
                    serves_relay=number == 0,
                )
                address = await transport.listen("" if hidden else ANYWHERE)
                public = public or [address]
                hello = Hello(VERSION, RUN, {}, key.peer, None)
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
