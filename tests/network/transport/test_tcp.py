"""TLS over TCP between honest peers: dialling, accepting, listening."""

import asyncio
import resource
import socket
from dataclasses import replace

import pytest

from tests.network.transport.endpoints import HASTY, LIMITS, open_files, run, transport, until
from troth.crypto.identity import Identity
from troth.network.transport.addresses import split_address
from troth.network.transport.base import Lane, Transport, TransportClosedError, UnreachableError
from troth.network.transport.tcp import TcpTransport


def test_it_is_what_the_interface_says() -> None:
    async def main() -> None:
        async with transport() as made:
            as_transport: Transport = made
            assert as_transport is made

    run(main())


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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
            connections = [await dialler.dial(address, identity.peer) for _ in range(6)]
            assert [await connection.closed() for connection in connections[:2]] == [
                "the other side closed: replaced by a newer connection"
            ] * 2
            for connection in connections[2:]:
                connection.send(Lane.CONTROL, b"x")
                assert await (await listener.accept()).receive() == (Lane.CONTROL, b"x")

    run(main())


def test_connections_have_a_bound() -> None:
    async def main() -> None:
        identity = Identity.generate()
        async with transport(replace(LIMITS, most_connections=2), identity=identity) as listener:
            address = await listener.listen("127.0.0.1:0")
            async with transport() as one, transport() as two, transport() as three:
                await one.dial(address, identity.peer)
                connection = await two.dial(address, identity.peer)
                with pytest.raises(UnreachableError, match="no place left"):
                    await three.dial(address, identity.peer)
                connection.close()
                await connection.closed()
                await three.dial(address, identity.peer)

    run(main())


@pytest.mark.long
def test_a_key_with_several_connections_makes_room() -> None:
    """Else some members could take all places before others come: each may hold four, under its key and its successor's."""

    async def main() -> None:
        identity = Identity.generate()
        async with transport(replace(LIMITS, most_connections=4), identity=identity) as listener:
            address = await listener.listen("127.0.0.1:0")
            async with transport() as liar, transport() as one, transport() as two:
                theirs = [await liar.dial(address, identity.peer) for _ in range(4)]
                honest = [await one.dial(address, identity.peer), await two.dial(address, identity.peer)]
                assert [await connection.closed() for connection in theirs[:2]] == [
                    "the other side closed: replaced by a newer connection"
                ] * 2
                assert all(connection.up for connection in (*theirs[2:], *honest))
                again = await liar.dial(address, identity.peer)
                await theirs[2].closed()
                assert all(connection.up for connection in (theirs[3], again, *honest))

    run(main())


@pytest.mark.long
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


def test_a_transport_can_be_made_without_a_loop() -> None:
    TcpTransport(Identity.generate(), LIMITS)
