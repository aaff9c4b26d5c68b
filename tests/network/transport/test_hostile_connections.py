"""Strangers and members who mean harm: each attack costs them more than us, and honest peers get through meanwhile."""

import asyncio
import logging
import socket
import sys
import time
import tracemalloc
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import replace

import pytest

from tests.network.transport.endpoints import HASTY, LIMITS, MB, pair, raw_peer, run, transport, until
from tests.network.transport.test_tls import forged
from troth.crypto.identity import Identity
from troth.network.transport.base import Lane
from troth.network.transport.connection import _BUF_LOCK
from troth.network.transport.framing import HEADER, LARGEST_CHUNK_BYTES, PING, SMALLEST_CHUNK_BYTES, ChunkKind, Outbox
from troth.network.transport.tcp import TcpTransport, client_context


def where(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


async def connects(listener: TcpTransport, address: str, identity: Identity) -> None:
    """An honest peer gets through, and a message with it."""
    async with transport() as honest:
        connection = await honest.dial(address, identity.peer)
        connection.send(Lane.CONTROL, b"hello")
        assert await (await listener.accept()).receive() == (Lane.CONTROL, b"hello")


# Before the handshake is done


@pytest.mark.long
@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x00", b"\xff" * 5000, b"\x16\x03\x01\xff\xff" + bytes(5000), b""],
    ids=["http", "one byte", "ones", "a record that never ends", "nothing"],
)
def test_garbage_instead_of_tls(garbage: bytes) -> None:
    async def main() -> None:
        identity = Identity.generate()
        async with transport(HASTY, identity=identity) as listener:
            address = await listener.listen("127.0.0.1:0")
            reader, writer = await asyncio.open_connection(*where(address))
            writer.write(garbage)
            with suppress(ConnectionResetError):
                await reader.read()  # until we are hung up on, at the latest after the time for a handshake
            writer.close()
            await until(lambda: not listener._handshakes)
            await connects(listener, address, identity)

    run(main())


@pytest.mark.long
def test_a_thousand_garbage_connections() -> None:
    async def main() -> None:
        identity = Identity.generate()
        async with transport(replace(LIMITS, most_handshakes=16), identity=identity) as listener:
            address = await listener.listen("127.0.0.1:0")
            most = 0
            for burst in range(10):
                with ExitStack() as open_ones:
                    for i in range(100):
                        stranger = open_ones.enter_context(socket.create_connection(where(address)))
                        stranger.send(bytes([i]) * 200)
                        await asyncio.sleep(0)
                        most = max(most, len(listener._handshakes))
                    if burst % 5 == 0:
                        await connects(listener, address, identity)
            assert most <= 16
            await until(lambda: not listener._tasks)
            assert not listener._handshakes

    run(main())


@pytest.mark.long
def test_half_open_connections_do_not_keep_honest_peers_out() -> None:
    async def main() -> None:
        identity = Identity.generate()
        async with transport(replace(LIMITS, most_handshakes=8), identity=identity) as listener:
            address = await listener.listen("127.0.0.1:0")
            with ExitStack() as half_open:
                for _ in range(100):
                    half_open.enter_context(socket.create_connection(where(address)))  # and says nothing
                await until(lambda: len(listener._handshakes) == 8)
                await connects(listener, address, identity)
                assert len(listener._handshakes) <= 8

    run(main())


@pytest.mark.long
def test_a_stranger_that_says_nothing_costs_hardly_any_memory() -> None:
    async def main() -> None:
        async with transport(LIMITS) as listener:
            address = await listener.listen("127.0.0.1:0")
            with ExitStack() as half_open:
                tracemalloc.start()
                try:
                    for _ in range(60):
                        half_open.enter_context(socket.create_connection(where(address)))
                    await until(lambda: len(listener._handshakes) == 60)
                    silent, _ = tracemalloc.get_traced_memory()
                finally:
                    tracemalloc.stop()
            assert silent < 60 * 20_000  # of which a TLS connection would take 300,000 each

    run(main())


def test_a_crowd_from_one_address_does_not_push_out_another() -> None:
    async def main() -> None:
        async with transport(replace(LIMITS, most_handshakes=4)) as listener:
            address = await listener.listen("0.0.0.0:0")
            with ExitStack() as crowd:
                slow = crowd.enter_context(
                    socket.create_connection(("127.0.0.1", where(address)[1]), source_address=("127.0.0.2", 0))
                )
                for _ in range(20):
                    crowd.enter_context(socket.create_connection(("127.0.0.1", where(address)[1])))
                    await asyncio.sleep(0)
                await until(lambda: len(listener._tasks) == 4)
                slow.setblocking(False)
                with pytest.raises(BlockingIOError):
                    slow.recv(1)  # not hung up on
                assert "127.0.0.2" in listener._handshakes.values()

    run(main())


@pytest.mark.long
def test_a_handshake_has_a_deadline() -> None:
    async def main() -> None:
        async with transport(replace(LIMITS, handshake_s=0.2)) as listener:
            address = await listener.listen("127.0.0.1:0")
            began = time.monotonic()
            reader, writer = await asyncio.open_connection(*where(address))
            assert await reader.read() == b""
            assert time.monotonic() - began < 5
            writer.close()
            await writer.wait_closed()

    run(main())


@pytest.mark.long
def test_a_key_of_another_kind_is_turned_away() -> None:
    async def main() -> None:
        identity = Identity.generate()
        async with transport(identity=identity) as listener:
            address = await listener.listen("127.0.0.1:0")
            reader, writer = await asyncio.open_connection(*where(address), ssl=forged(), server_hostname="")
            await reader.readuntil(b"holds no key of a peer")
            writer.transport.abort()
            await connects(listener, address, identity)

    run(main())


def test_another_protocol_inside_tls_is_turned_away() -> None:
    async def main() -> None:
        async with transport() as listener:
            address = await listener.listen("127.0.0.1:0")
            context = client_context(Identity.generate())
            context.set_alpn_protocols(["troth/999"])
            reader, writer = await asyncio.open_connection(*where(address), ssl=context, server_hostname="")
            await reader.readuntil(b"you do not speak troth/1")
            writer.transport.abort()

    run(main())


@pytest.mark.long
def test_messages_of_a_refused_key_are_not_read() -> None:
    async def main() -> None:
        identity = Identity.generate()
        async with transport(replace(LIMITS, most_connections=1), identity) as listener, transport() as guest:
            address = await listener.listen("127.0.0.1:0")
            await guest.dial(address, identity.peer)
            await listener.accept()
            async with raw_peer(address) as stranger:
                stranger.writer.write((HEADER.pack(ChunkKind.CONTROL, 4, 4) + b"hear") * 1000)
                await stranger.reader.readuntil(b"no place left")
            await until(lambda: not listener._tasks)
            assert not listener._pool._unaccepted

    run(main())


# After the handshake


ATTACKS = {
    "oversized": (HEADER.pack(ChunkKind.BULK, 2**32 - 1, LARGEST_CHUNK_BYTES), "are allowed"),
    "oversized control": (HEADER.pack(ChunkKind.CONTROL, MB + 1, MB), "are allowed"),
    "endless": (
        HEADER.pack(ChunkKind.BULK, 40_000, 20_000)
        + bytes(20_000)
        + HEADER.pack(ChunkKind.BULK, 40_000, 200_000)
        + bytes(200_000),
        "20000 bytes into a message of 40000",
    ),
    "two at once": (
        HEADER.pack(ChunkKind.BULK, 40_000, 20_000) + bytes(20_000) + HEADER.pack(ChunkKind.BULK, 9, 9) + bytes(9),
        "begins before",
    ),
    "crumbs": (HEADER.pack(ChunkKind.BULK, MB, SMALLEST_CHUNK_BYTES - 1), "in the middle"),
    "unknown": (bytes([77]) + bytes(8), "unknown kind"),
    "pings": (PING * 5000, "pings without end"),
    "noise": (b"\xa5" * 100_000, "unknown kind"),
}


@pytest.mark.long
@pytest.mark.parametrize(("stream", "reason"), ATTACKS.values(), ids=list(ATTACKS))
def test_a_peer_that_breaks_the_framing_is_hung_up_on(
    stream: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with transport() as listener:
            address = await listener.listen("127.0.0.1:0")
            async with raw_peer(address) as attacker:
                connection = await listener.accept()
                connection.recognise(known=True)
                assert connection.peer == attacker.peer
                attacker.writer.write(stream)
                why = await connection.closed()
                assert connection.misbehaviour == why
                assert reason in why
                await attacker.hears()
            assert [record.message for record in caplog.records] == [f"{connection.peer.hex()[:16]}: {why}"]

    with caplog.at_level(logging.WARNING, "troth.network"):
        run(main())


@pytest.mark.long
def test_a_sender_that_never_reads_is_cut_off_at_the_bound() -> None:
    async def main() -> None:
        tight = replace(LIMITS, most_bulk_bytes=MB, most_queued_bytes=4 * MB)
        async with transport(tight) as listener:
            address = await listener.listen("127.0.0.1:0")
            async with raw_peer(address) as attacker:
                attacker.writer.transport.pause_reading()  # type: ignore[attr-defined]
                connection = await listener.accept()
                connection.recognise(known=True)
                while connection.send(Lane.BULK, bytes(MB)):
                    await asyncio.sleep(0)
                assert "too slow" in await connection.closed()

    run(main())


@pytest.mark.long
def test_silence_is_noticed() -> None:
    async def main() -> None:
        async with transport(HASTY) as listener:
            address = await listener.listen("127.0.0.1:0")
            async with raw_peer(address) as silent:
                connection = await listener.accept()
                connection.recognise(known=True)
                assert await connection.closed() == "not heard for 0.4 s"
                assert (await silent.hears()).endswith(b"not heard for 0.4 s")

    run(main())


@pytest.mark.long
def test_a_message_that_trickles_is_not_waited_for() -> None:
    """The attack: keep the connection alive with pings while a message never gets on. Neither pings nor crumbs count."""

    async def main() -> None:
        async with transport(HASTY) as listener:
            address = await listener.listen("127.0.0.1:0")
            async with raw_peer(address) as attacker:
                connection = await listener.accept()
                connection.recognise(known=True)
                attacker.writer.write(HEADER.pack(ChunkKind.BULK, MB, 200_000))

                async def trickle() -> None:
                    while not connection.why:
                        attacker.writer.write(b"x")
                        await asyncio.sleep(HASTY.ping_s / 4)

                _, why = await asyncio.gather(trickle(), connection.closed())
                assert "trickle" in why

    run(main())


@pytest.mark.long
def test_pings_do_not_carry_a_message_that_stands_still() -> None:
    async def main() -> None:
        async with transport(HASTY) as listener:
            address = await listener.listen("127.0.0.1:0")
            async with raw_peer(address) as attacker:
                connection = await listener.accept()
                connection.recognise(known=True)
                attacker.writer.write(HEADER.pack(ChunkKind.BULK, MB, 20_000) + bytes(20_000))

                async def ping() -> None:
                    while not connection.why:
                        attacker.writer.write(PING)
                        await asyncio.sleep(HASTY.ping_s / 4)

                _, why = await asyncio.gather(ping(), connection.closed())
                assert "trickle" in why

    run(main())


# Before it is known


def stranger_says(length: int, sent: int) -> bytes:
    """The beginning of a control message."""
    return HEADER.pack(ChunkKind.CONTROL, length, sent) + bytes(sent)


@pytest.mark.long
@pytest.mark.parametrize("greeted", [False, True])
@pytest.mark.parametrize("kind", [ChunkKind.CONTROL, ChunkKind.BULK])
def test_a_stranger_gets_no_memory_for_more_than_a_greeting(kind: ChunkKind, greeted: bool) -> None:
    """[M4] Before it says who it is, and afterwards: what it announces is refused before memory is taken."""

    async def main() -> None:
        async with transport() as listener:
            address = await listener.listen("127.0.0.1:0")
            async with raw_peer(address) as attacker:
                connection = await listener.accept()
                if greeted:
                    attacker.writer.write(stranger_says(100, 100))
                    assert await connection.receive() is not None
                    connection.recognise(known=False)
                attacker.writer.write(HEADER.pack(kind, LIMITS.most_unknown_bytes + 1, SMALLEST_CHUNK_BYTES))
                assert "are allowed" in await connection.closed()

    run(main())


def test_what_follows_the_greeting_waits_until_it_is_known() -> None:
    """[M4] Then it is heard with the limits of a member: parts may come in the same packet as the greeting."""

    async def main() -> None:
        async with transport() as listener:
            address = await listener.listen("127.0.0.1:0")
            async with raw_peer(address) as member:
                connection = await listener.accept()
                large = HEADER.pack(ChunkKind.BULK, 100_000, 100_000) + bytes(100_000)
                member.writer.write(stranger_says(5, 5) + stranger_says(6, 6) + large)
                assert await connection.receive() == (Lane.CONTROL, bytes(5))
                await until(lambda: connection.bytes_in > 1000)
                assert connection.reading_paused
                assert (connection.waiting_bytes, connection.up) == (0, True)
                connection.recognise(known=True)
                assert await connection.receive() == (Lane.CONTROL, bytes(6))
                assert await connection.receive() == (Lane.BULK, bytes(100_000))

    run(main())


@pytest.mark.long
def test_a_flood_of_small_messages_waits_outside() -> None:
    """[M4] Of a stranger a greeting's worth is taken in, with what it costs to keep; and it ends with the connection."""

    async def main() -> None:
        async with transport() as listener:
            address = await listener.listen("127.0.0.1:0")
            async with raw_peer(address) as attacker:
                connection = await listener.accept()
                attacker.writer.write(stranger_says(5, 5))
                await connection.receive()
                connection.recognise(known=False)
                attacker.writer.write(stranger_says(159, 159) * 20_000)
                await until(lambda: connection.reading_paused)
                assert 0 < connection.waiting_bytes <= 2 * LIMITS.most_unknown_bytes
                assert connection.bytes_in <= 2 * LIMITS.most_unknown_bytes
            await connection.closed()  # though nobody reads
            assert connection.waiting_bytes == 0
            assert await connection.receive() is None

    run(main())


@pytest.mark.long
def test_places_of_the_unknown_are_those_of_the_busiest_address_first() -> None:
    """[M4] Whoever is known, or came from elsewhere, stays."""

    async def main() -> None:
        async with transport(replace(LIMITS, most_unknown=4)) as listener:
            address = await listener.listen("0.0.0.0:0")
            host = f"127.0.0.1:{where(address)[1]}"
            async with raw_peer(host) as member, raw_peer(host, "127.0.0.2") as elsewhere, AsyncExitStack() as crowd:
                ends = [await listener.accept() for _ in range(2)]
                next(end for end in ends if end.peer == member.peer).recognise(known=True)
                for _ in range(20):
                    await crowd.enter_async_context(raw_peer(host))
                    await listener.accept()
                    unknown = [one for one in listener._pool.connections if one.up and not one.known]
                    assert len(unknown) <= 4
                    assert elsewhere.peer in {one.peer for one in unknown}
                assert ends[0].up
                assert ends[1].up

    run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a buffer grow again")
def test_the_system_keeps_little_of_a_stranger_and_as_much_as_it_likes_of_a_member() -> None:
    """[M4] Else it would keep up to 32 MiB of each that floods while we do not read."""

    async def main() -> None:
        async with transport() as listener:
            address = await listener.listen("127.0.0.1:0")
            async with raw_peer(address):
                connection = await listener.accept()
                assert connection._transport is not None
                sock = connection._transport.get_extra_info("socket")
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) <= 64 * 1024
                assert sock.getsockopt(socket.SOL_SOCKET, _BUF_LOCK)
                connection.recognise(known=True)
                assert not sock.getsockopt(socket.SOL_SOCKET, _BUF_LOCK)

    run(main())


def test_a_goodbye_followed_by_more_is_the_end() -> None:
    async def main() -> None:
        async with transport() as listener:
            address = await listener.listen("127.0.0.1:0")
            async with raw_peer(address) as attacker:
                connection = await listener.accept()
                connection.recognise(known=True)
                outbox = Outbox(1000)
                outbox.put(Lane.CONTROL, b"last")
                header, body = outbox.next_chunk() or pytest.fail("nothing to send")
                last = header + b"".join(body)
                attacker.writer.write(last + HEADER.pack(ChunkKind.GOODBYE, 5, 5) + b"\x1b[0m\n" + last)
                assert await connection.receive() == (Lane.CONTROL, b"last")
                assert await connection.receive() is None
                assert await connection.closed() == "the other side closed: ?[0m?"

    run(main())


def test_a_line_that_breaks_is_seen_by_both_users() -> None:
    async def main() -> None:
        async with pair() as (near, far):
            assert near._transport is not None
            near._transport.abort()
            assert await near.receive() is None
            assert await far.receive() is None
            assert "broke" in await near.closed()
            assert await far.closed() == "the other side hung up"

    run(main())


def test_hostile_events_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with transport() as listener:
            address = await listener.listen("127.0.0.1:0")
            for _ in range(30):
                reader, writer = await asyncio.open_connection(*where(address))
                writer.write(b"nonsense" * 100)
                await asyncio.gather(reader.read(), return_exceptions=True)
                writer.close()
                await asyncio.gather(writer.wait_closed(), return_exceptions=True)
            for kind in range(2000):
                listener._pool.warnings.warn(str(kind), "someone", "did something")

    with caplog.at_level(logging.WARNING, "troth.network"):
        run(main())
    lines = [record.message for record in caplog.records]
    assert sum("no handshake" in line for line in lines) == 1
    assert len(lines) == 512
    assert lines[-1].endswith("no more such lines for a while")
