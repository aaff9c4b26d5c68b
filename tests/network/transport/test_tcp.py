"""The transport between honest peers."""

import asyncio
import errno
import resource
import socket
import time
from dataclasses import replace

import pytest

from tests.network.transport.endpoints import HASTY, LIMITS, MB, anyone, open_files, pair, run, transport, until
from troth.crypto.identity import Identity
from troth.network.transport.addresses import _listening_failed, source_of, split_address
from troth.network.transport.base import (
    Connection,
    Lane,
    Limits,
    ListenError,
    Transport,
    TransportClosedError,
    UnreachableError,
)
from troth.network.transport.framing import CHUNK_BYTES
from troth.network.transport.tcp import TcpTransport
from troth.network.transport.throttle import TokenBucket


def test_it_is_what_the_interface_says() -> None:
    async def main() -> None:
        async with transport() as made, pair() as (near, _):
            as_transport: Transport = made
            as_connection: Connection = near
            assert as_transport is made
            assert as_connection is near

    run(main())


def test_messages_travel_both_ways_on_both_lanes() -> None:
    async def main() -> None:
        async with pair() as (near, far):
            assert near.dialled
            assert not far.dialled
            for here, there in ((near, far), (far, near)):
                for lane in Lane:
                    for message in (b"x", b"word", bytes(100_000), bytes(range(256)) * 2000):
                        assert here.send(lane, message)
                        assert await there.receive() == (lane, message)
            await until(lambda: near.bytes_out == far.bytes_in and far.bytes_out == near.bytes_in)

    run(main())


def test_three_megabytes_both_ways_at_once() -> None:
    async def main() -> None:
        async with pair() as (near, far):
            there, back = bytes(3 * MB), b"\xff" * (3 * MB)
            near.send(Lane.BULK, there)
            far.send(Lane.BULK, back)
            got_back, got_there = await asyncio.gather(near.receive(), far.receive())
            assert got_back == (Lane.BULK, back)
            assert got_there == (Lane.BULK, there)

    run(main())


def test_control_overtakes_a_large_bulk_message() -> None:
    async def main() -> None:
        async with pair() as (near, far):
            near.send(Lane.BULK, bytes(50 * MB))
            await until(lambda: far.bytes_in > 5 * MB)  # under way, not only queued
            near.send(Lane.CONTROL, b"urgent")
            assert await far.receive() == (Lane.CONTROL, b"urgent")
            assert far.bytes_in < 40 * MB
            got = await far.receive()
            assert got is not None
            assert (got[0], len(got[1])) == (Lane.BULK, 50 * MB)

    run(main())


def test_order_within_a_lane_is_kept() -> None:
    async def main() -> None:
        async with pair() as (near, far):
            for i in range(1, 300):
                near.send(Lane.CONTROL, i.to_bytes(2, "big") * i)
            for i in range(1, 300):
                assert await far.receive() == (Lane.CONTROL, i.to_bytes(2, "big") * i)

    run(main())


def test_a_cancelled_receive_loses_nothing() -> None:
    async def main() -> None:
        async with pair() as (near, far):
            waiting = asyncio.create_task(far.receive())
            await asyncio.sleep(0)
            near.send(Lane.CONTROL, b"one")
            await until(lambda: bool(far._received))
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert await far.receive() == (Lane.CONTROL, b"one")

    run(main())


def test_a_reader_that_does_not_read_stops_the_writer_and_loses_nothing() -> None:
    async def main() -> None:
        async with pair(LIMITS, replace(LIMITS, most_received_bytes=MB)) as (near, far):
            for i in range(40):
                assert near.send(Lane.BULK, bytes([i]) * MB)
            await until(lambda: far._reading_paused)
            assert far._received_bytes <= 3 * MB
            for i in range(40):
                got = await far.receive()
                assert got is not None
                assert (len(got[1]), got[1][0], got[1][-1]) == (MB, i, i)

    run(main())


def test_a_slow_reader_is_not_taken_for_a_dead_one() -> None:
    """While we do not read we do not hear; that is not the fault of the other side, and it hears our pings."""

    async def main() -> None:
        slow = replace(HASTY, most_received_bytes=1)
        async with pair(HASTY, slow) as (near, far):
            near.send(Lane.BULK, bytes(20 * MB))
            near.send(Lane.BULK, bytes(20 * MB))
            await until(lambda: far._reading_paused)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.gather(near.closed(), far.closed()), 3 * HASTY.idle_s)
            assert (await far.receive(), await far.receive()) == ((Lane.BULK, bytes(20 * MB)),) * 2

    run(main())


def test_an_idle_line_stays_up() -> None:
    async def main() -> None:
        async with pair(HASTY) as (near, far):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.gather(near.closed(), far.closed()), 2.5 * HASTY.idle_s)
            near.send(Lane.CONTROL, b"still here")
            assert await far.receive() == (Lane.CONTROL, b"still here")

    run(main())


def test_a_queue_over_its_bound_closes_the_line() -> None:
    async def main() -> None:
        small = Limits(most_control_bytes=100, most_bulk_bytes=MB, most_queued_bytes=5 * MB)
        async with pair(small, replace(small, most_received_bytes=1)) as (near, _):
            sent = 0
            while near.send(Lane.BULK, bytes(MB)):
                await asyncio.sleep(0)
                sent += 1
            assert sent >= 5
            assert "too slow" in await near.closed()
            assert not near.send(Lane.CONTROL, b"x")

    run(main())


def test_messages_out_of_bounds_are_our_mistake() -> None:
    async def main() -> None:
        async with pair() as (near, far):
            for lane, message in ((Lane.CONTROL, bytes(MB + 1)), (Lane.CONTROL, b""), (Lane.BULK, bytes(64 * MB + 1))):
                with pytest.raises(ValueError, match="bytes, not"):
                    near.send(lane, message)
            near.send(Lane.CONTROL, b"nothing happened")
            assert await far.receive() == (Lane.CONTROL, b"nothing happened")

    run(main())


def test_closing_flushes_control_drops_bulk_and_says_why() -> None:
    async def main() -> None:
        async with pair() as (near, far):
            near.send(Lane.BULK, bytes(60 * MB))
            for i in range(50):
                near.send(Lane.CONTROL, bytes([i]) * 20_000)
            near.close("enough")
            assert not near.send(Lane.CONTROL, b"x")
            assert await near.receive() is None
            for i in range(50):
                assert await far.receive() == (Lane.CONTROL, bytes([i]) * 20_000)
            assert await far.receive() is None
            assert await far.closed() == "the other side closed: enough"
            assert await near.closed() == "enough"

    run(main())


def test_both_sides_may_close_at_once() -> None:
    async def main() -> None:
        async with pair() as (near, far):
            for end in (near, far):
                end.send(Lane.BULK, bytes(10 * MB))
                end.close()
                end.close("twice")
            assert await near.closed() == await far.closed() == "closed"

    run(main())


def test_closing_does_not_wait_for_somebody_who_does_not_listen() -> None:
    async def main() -> None:
        async with pair(LIMITS, replace(LIMITS, most_received_bytes=1)) as (near, far):
            far_reads_nothing = far
            near.send(Lane.BULK, bytes(30 * MB))
            near.send(Lane.BULK, bytes(30 * MB))
            await until(lambda: far_reads_nothing._reading_paused)
            for _ in range(100):
                near.send(Lane.CONTROL, bytes(MB // 2))
            began = time.monotonic()
            near.close()
            await near.closed()
            assert time.monotonic() - began < 5

    run(main())


def test_after_a_close_one_can_dial_again() -> None:
    async def main() -> None:
        identity = Identity.generate()
        async with transport() as dialler, transport(identity=identity) as listener:
            address = await listener.listen("127.0.0.1:0")
            for i in range(5):
                near = await dialler.dial(address, identity.peer)
                far = await listener.accept()
                near.send(Lane.CONTROL, bytes([i + 1]))
                assert await far.receive() == (Lane.CONTROL, bytes([i + 1]))
                (near if i % 2 else far).close()
                await asyncio.gather(near.closed(), far.closed())

    run(main())


def test_the_port_is_free_again_at_once() -> None:
    async def main() -> None:
        identity = Identity.generate()
        async with transport() as dialler:
            address = "127.0.0.1:0"
            for _ in range(3):
                async with transport(identity=identity) as listener:
                    address = await listener.listen(address)
                    near = await dialler.dial(address, identity.peer)
                    await listener.accept()
                assert await near.closed() == "the other side closed: shutting down"

    run(main())


def test_another_key_than_the_one_dialled() -> None:
    async def main() -> None:
        async with transport() as dialler, transport() as listener:
            address = await listener.listen("127.0.0.1:0")
            with pytest.raises(UnreachableError, match="another key answers"):
                await dialler.dial(address, Identity.generate().peer)

    run(main())


def test_a_key_that_is_not_admitted_is_told_so() -> None:
    async def main() -> None:
        identity, friend = Identity.generate(), Identity.generate()

        def admits(peer: bytes) -> bool:
            return peer == friend.peer

        async with (
            transport(identity=identity, admits=admits) as listener,
            transport() as stranger,
            transport(identity=friend) as welcome,
        ):
            address = await listener.listen("127.0.0.1:0")
            with pytest.raises(UnreachableError, match="not admitted"):
                await stranger.dial(address, identity.peer)
            await welcome.dial(address, identity.peer)
            assert (await listener.accept()).peer == friend.peer
            assert not listener._pool._unaccepted

    run(main())


@pytest.mark.parametrize(
    ("listen", "hosts"),
    [
        ("localhost:0", ["localhost"]),
        ("127.0.0.1:0", ["127.0.0.1", "localhost"]),
        ("0.0.0.0:0", ["127.0.0.1", "localhost"]),
        ("[::1]:0", ["[::1]"]),
        ("[::]:0", ["[::1]", "127.0.0.1"]),  # of both kinds
    ],
)
def test_names_and_addresses_of_both_kinds(listen: str, hosts: list[str]) -> None:
    async def main() -> None:
        identity = Identity.generate()
        async with transport() as dialler, transport(identity=identity) as listener:
            _, port = split_address(await listener.listen(listen))
            assert port > 0
            for host in hosts:
                near = await dialler.dial(f"{host}:{port}", identity.peer)
                assert near.peer == identity.peer

    run(main())


def test_why_a_peer_is_unreachable() -> None:
    async def main() -> None:
        peer = Identity.generate().peer
        with socket.socket() as silent, socket.socket() as nobody:
            silent.bind(("127.0.0.1", 0))
            silent.listen()  # accepts in the kernel and never answers
            nobody.bind(("127.0.0.1", 0))
            async with transport(HASTY) as dialler:
                for address, reason in (
                    (f"127.0.0.1:{silent.getsockname()[1]}", "no answer from .* within 0.5 s"),
                    (f"127.0.0.1:{nobody.getsockname()[1]}", "Connection refused"),
                    ("nonsense", "write host:port"),
                    ("::1:80", "write host:port"),
                    ("host:99999", "no port"),
                    ("name..invalid:1", "no name of a host"),
                ):
                    with pytest.raises(UnreachableError, match=reason):
                        await dialler.dial(address, peer)
            with pytest.raises(UnreachableError, match="closed"):
                await dialler.dial("127.0.0.1:1", peer)

    run(main())


def test_something_that_is_no_peer_answers() -> None:
    async def main() -> None:
        async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(http, "127.0.0.1", 0) as server, transport() as dialler:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(UnreachableError, match="no Troth peer"):
                await dialler.dial(f"127.0.0.1:{port}", Identity.generate().peer)

    run(main())


def test_a_cancelled_dial_leaves_nothing_behind() -> None:
    async def main() -> None:
        identity = Identity.generate()
        async with transport() as dialler, transport(identity=identity) as listener:
            address = await listener.listen("127.0.0.1:0")
            for turns in range(25):  # each time a little later in the handshake
                dialling = asyncio.create_task(dialler.dial(address, identity.peer))
                for _ in range(turns):
                    await asyncio.sleep(0)
                dialling.cancel()
                await asyncio.gather(dialling, return_exceptions=True)

    run(main())


def test_closing_amid_handshakes_leaves_nothing_behind() -> None:
    async def main() -> None:
        for turns in range(0, 24, 2):
            identity = Identity.generate()
            async with transport() as dialler, transport(identity=identity) as listener:
                address = await listener.listen("127.0.0.1:0")
                dials = [asyncio.create_task(dialler.dial(address, identity.peer)) for _ in range(3)]
                for _ in range(turns):
                    await asyncio.sleep(0)
                await asyncio.gather(dialler.close(), listener.close())
                await asyncio.gather(*dials, return_exceptions=True)

    run(main())


def test_accept_ends_with_the_transport() -> None:
    async def main() -> None:
        async with transport() as listener:
            accepting = asyncio.create_task(listener.accept())
            await asyncio.sleep(0)
        with pytest.raises(TransportClosedError):
            await accepting
        with pytest.raises(TransportClosedError):
            await listener.listen("127.0.0.1:0")

    run(main())


def test_a_newer_connection_of_a_peer_replaces_its_oldest() -> None:
    async def main() -> None:
        identity = Identity.generate()
        async with transport() as dialler, transport(identity=identity) as listener:
            address = await listener.listen("127.0.0.1:0")
            lines = [await dialler.dial(address, identity.peer) for _ in range(6)]
            assert [await line.closed() for line in lines[:2]] == [
                "the other side closed: replaced by a newer connection"
            ] * 2
            for line in lines[2:]:
                line.send(Lane.CONTROL, b"x")
                assert await (await listener.accept()).receive() == (Lane.CONTROL, b"x")

    run(main())


def test_connections_have_a_bound() -> None:
    async def main() -> None:
        identity = Identity.generate()
        async with transport(replace(LIMITS, most_connections=2), identity=identity) as listener:
            address = await listener.listen("127.0.0.1:0")
            async with transport() as one, transport() as two, transport() as three:
                await one.dial(address, identity.peer)
                line = await two.dial(address, identity.peer)
                with pytest.raises(UnreachableError, match="no place left"):
                    await three.dial(address, identity.peer)
                line.close()
                await line.closed()
                await three.dial(address, identity.peer)

    run(main())


# Bandwidth


def test_a_bucket_lets_through_its_rate() -> None:
    now, bucket, sent = 0.0, TokenBucket(1_000_000, 0.0), 0
    while now < 10:
        wait = bucket.ready_in(now)
        if wait == 0:
            bucket.spend(100_000)
            sent += 100_000
        now += wait
    assert 10_000_000 <= sent <= 10_000_000 + CHUNK_BYTES + 100_000


def test_a_cap_holds_over_all_connections_and_control_goes_first() -> None:
    async def main() -> None:
        identity = Identity.generate()
        capped = replace(LIMITS, bytes_per_second=2 * MB)
        async with transport(capped) as dialler, transport(identity=identity) as listener:
            address = await listener.listen("127.0.0.1:0")
            lines = [await dialler.dial(address, identity.peer) for _ in range(2)]
            ends = [await listener.accept() for _ in lines]
            began = time.monotonic()
            for line in lines:
                line.send(Lane.BULK, bytes(MB))
            lines[1].send(Lane.CONTROL, b"urgent")
            assert await ends[1].receive() == (Lane.CONTROL, b"urgent")
            assert time.monotonic() - began < 0.7
            await asyncio.gather(*(end.receive() for end in ends))
            # 2 MB at 2 MB a second, less what the bucket held at first, less the last chunk, which goes on credit.
            assert (2 * MB - 2 * CHUNK_BYTES) / (2 * MB) < time.monotonic() - began < 5

    run(main())


# Listening


def test_why_listening_fails() -> None:
    async def main() -> None:
        async with transport() as one, transport() as other:
            taken = await one.listen("127.0.0.1:0")
            for address, fix in (
                (taken, "the port is taken; choose another one"),
                ("192.0.2.1:0", "not an address of this machine; 0.0.0.0:0"),
                ("127.0.0.1", "write host:port"),
                ("127.0.0.1:port", "no port"),
                ("name..invalid:0", "use an IP address"),
            ):
                with pytest.raises(ListenError, match=fix):
                    await other.listen(address)

    run(main())
    assert "choose a port above 1023" in _listening_failed("127.0.0.1", 80, PermissionError(errno.EACCES, "no"))


def test_without_file_descriptors_accepting_pauses_and_goes_on() -> None:
    async def main() -> None:
        identity = Identity.generate()
        async with transport() as dialler, transport(identity=identity) as listener:
            address = await listener.listen("127.0.0.1:0")
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (open_files(), hard)
            )  # one more than are open: room to dial only
            try:
                dialling = asyncio.create_task(dialler.dial(address, identity.peer))
                await until(lambda: bool(listener._pauses))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert (await dialling).peer == identity.peer

    run(main())


def test_sources_are_told_apart() -> None:
    assert source_of("10.0.0.1") == "10.0.0.1"
    assert source_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert source_of("2001:db8:1:2:3::4") == source_of("2001:db8:1:2::9") == "2001:db8:1:2::/64"
    assert source_of("2001:db8:1:3::4") != source_of("2001:db8:1:2::4")
    assert source_of("fe80::1%eth0") == "fe80::/64"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"most_control_bytes": 0}, "most_control_bytes must be from 1"),
        ({"most_bulk_bytes": 2**32}, "most_bulk_bytes must be from 1"),
        ({"most_queued_bytes": MB}, "must hold the largest message"),
        ({"idle_s": 6.0}, "at least twice ping_s"),
        ({"ping_s": 0.0}, "ping_s must be a positive number"),
        ({"handshake_s": float("nan")}, "handshake_s must be a positive number"),
        ({"most_handshakes": 0}, "most_handshakes must be at least 1"),
        ({"bytes_per_second": 10.0}, "bytes_per_second must be at least"),
        ({"bytes_per_second": float("nan")}, "bytes_per_second must be at least"),
    ],
)
def test_limits_check_themselves(wrong: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(LIMITS, **wrong)  # type: ignore[arg-type]


def test_a_transport_can_be_made_without_a_loop() -> None:
    TcpTransport(Identity.generate(), LIMITS, anyone)


def test_a_process_that_was_held_up_does_not_blame_the_others() -> None:
    """All of this process stands still for longer than `idle_s`, so nobody can have said anything."""

    async def main() -> None:
        async with pair(HASTY) as (near, far):
            time.sleep(1.5 * HASTY.idle_s)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.gather(near.closed(), far.closed()), HASTY.idle_s / 2)
            near.send(Lane.CONTROL, b"back")
            assert await far.receive() == (Lane.CONTROL, b"back")

    run(main())
