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
from itertools import permutations
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.nettest.libp2p_loopback import LIMITS, MB, RUN, meet, node_of, peer
from tests.network.transport.endpoints import run as run_to_the_end
from troth.crypto.identity import Identity
from troth.errors import OperatorError
from troth.network.transport import libp2p_addresses
from troth.network.transport.base import Lane, ListenError, LocalPeer, UnreachableError
from troth.network.transport.libp2p import Libp2pOptions, Libp2pTransport
from troth.network.transport.libp2p_addresses import load_hivemind

ANYWHERE = "127.0.0.1:0"
BIG = os.urandom(20 * MB)
Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """In time, and without leaving tasks or files behind."""
    load_hivemind()  # it keeps some files open for itself
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
            connections = {}
            for a, b in permutations(range(4), 2):
                near, far = await meet(peers[a], peers[b], addresses[b], keys[b].peer)
                assert far.peer == keys[a].peer
                connections[a, b] = near, far
            part = BIG[: 2 * MB]
            for near, _ in connections.values():
                near.send(Lane.BULK, part)
                near.send(Lane.CONTROL, b"here")
            for _, far in connections.values():
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
            process = node_of(listener).daemon._process
            os.kill(process.pid, signal.SIGSTOP)  # a machine that freezes: no end of the stream, no bytes
            try:
                async with asyncio.timeout(5.0):
                    assert "not heard" in await near.closed()
                    await far.closed()
            finally:
                os.kill(process.pid, signal.SIGCONT)

    run(main())


def test_a_reader_that_does_not_read_stops_the_sender_and_nothing_overflows() -> None:
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

    monkeypatch.setattr(libp2p_addresses, "import_module", missing)
    with pytest.raises(OperatorError, match=r"pip install 'troth\[libp2p\]'"):
        Libp2pTransport(LocalPeer(Identity.generate(), LIMITS, RUN, lambda _: True), Libp2pOptions())


def test_nothing_is_left_behind() -> None:
    """No process, no socket, no key."""

    async def main() -> tuple[int, Path]:
        async with peer() as listener:
            await listener.listen(ANYWHERE)
            daemon = node_of(listener).daemon
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
from tests.nettest.libp2p_loopback import node_of, peer
async def main():
    async with peer() as listener:
        await listener.listen("127.0.0.1:0")
        daemon = node_of(listener).daemon
        print(daemon._process.pid, daemon.folder, flush=True)
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
            still = node_of(listener).daemon
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
                node_of(listener).daemon._process.kill()
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
