"""The libp2p transport over an internet in memory: listening, finding each other, relays, a daemon that dies."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.network.transport.endpoints import LIMITS, anyone, run, until
from tests.network.transport.libp2p.fake_internet import HIVEMIND, FakeRecord, Internet
from troth.crypto import Digest, Identity
from troth.crypto.identity import PeerId
from troth.network.transport import libp2p, libp2p_node
from troth.network.transport.base import Lane, ListenError, LocalPeer, TransportClosedError, UnreachableError
from troth.network.transport.libp2p import Libp2pOptions, Libp2pTransport
from troth.network.transport.libp2p_addresses import LASTS_S, dht_key, encode_peer_record, libp2p_id, libp2p_name

RUN = Digest(b"r" * 32)
ALICE, BOB = Identity.from_secret(b"a" * 32), Identity.from_secret(b"b" * 32)
ANYWHERE = "127.0.0.1:0"


@pytest.fixture(autouse=True)
def internet(monkeypatch: pytest.MonkeyPatch) -> Internet:
    internet = Internet()
    monkeypatch.setattr(libp2p, "load_hivemind", lambda: HIVEMIND)
    monkeypatch.setattr(libp2p, "_UPKEEP_EVERY_S", 0.02)
    monkeypatch.setattr("troth.network.transport.libp2p.Libp2pNode.start", internet.start)
    return internet


@asynccontextmanager
async def peer(
    identity: Identity,
    options: Libp2pOptions | None = None,
    keeps: Callable[[PeerId], bool] = anyone,
) -> AsyncIterator[Libp2pTransport]:
    made = Libp2pTransport(LocalPeer(identity, LIMITS, RUN, keeps), options or Libp2pOptions())
    try:
        yield made
    finally:
        await made.close()


def published(transport: Libp2pTransport) -> tuple[str, ...]:
    """Its addresses, as last published for others."""
    return () if transport._running is None else transport._running.published


async def talk(dialler: Libp2pTransport, listener: Libp2pTransport, address: str, to: Identity) -> None:
    """A connection, and a message each way."""
    near = await dialler.dial(address, to.peer)
    far = await listener.accept()
    assert (near.peer, near.dialled, far.dialled) == (to.peer, True, False)
    for end in (near, far):
        end.recognise(known=True)
    for end, other in ((near, far), (far, near)):
        assert end.send(Lane.BULK, b"a gradient" * 10_000)
        assert await other.receive() == (Lane.BULK, b"a gradient" * 10_000)
    near.close()
    await asyncio.gather(near.closed(), far.closed())


@pytest.mark.long
def test_peers_meet_at_an_address_and_through_the_dht() -> None:
    async def main() -> None:
        async with peer(BOB) as listener:
            address = await listener.listen(ANYWHERE)
            assert address == f"/ip4/127.0.0.1/tcp/4001/p2p/{libp2p_name(BOB.peer)}"
            async with peer(ALICE, Libp2pOptions(initial_peers=(address,))) as dialler:
                for where in (address, "127.0.0.1:4001", "dht:", ""):
                    await talk(dialler, listener, where, BOB)
                with pytest.raises(UnreachableError, match="nobody in the DHT knows"):
                    await dialler.dial("dht:", Identity.generate().peer)
                with pytest.raises(UnreachableError, match="cannot reach it: nobody there"):
                    await dialler.dial("127.0.0.1:4002", BOB.peer)

    run(main())


@pytest.mark.long
def test_a_peer_that_has_moved_is_found_by_its_newest_record(internet: Internet) -> None:
    """The first search takes a record that is good enough; a peer that is not there is searched for again."""

    async def main() -> None:
        async with peer(BOB) as listener, peer(ALICE) as dialler:
            await listener.listen(ANYWHERE)
            end = time.time() + LASTS_S
            stale = encode_peer_record(BOB, RUN, end, ["/ip4/127.0.0.1/tcp/9999"])
            internet.older[dht_key(RUN, BOB.peer)] = FakeRecord(stale, end)
            await talk(dialler, listener, "dht:", BOB)

    run(main())


@pytest.mark.long
def test_a_forged_record_is_not_believed(internet: Internet) -> None:
    async def main() -> None:
        async with peer(ALICE) as dialler:
            end = time.time() + LASTS_S
            forged = bytearray(encode_peer_record(ALICE, RUN, end, ["/ip4/127.0.0.1/tcp/9999"]))
            forged[64:96] = BOB.peer
            internet.records[dht_key(RUN, BOB.peer)] = FakeRecord(bytes(forged), end)
            with pytest.raises(UnreachableError, match="nobody in the DHT knows"):
                await dialler.dial("dht:", BOB.peer)

    run(main())


@pytest.mark.long
def test_a_daemon_that_dies_is_started_again_at_the_same_port(internet: Internet) -> None:
    async def main() -> None:
        async with peer(BOB) as listener, peer(ALICE) as dialler:
            address = await listener.listen(ANYWHERE)
            first = internet.nodes[libp2p_id(BOB.peer)]
            first.ended = True
            await until(lambda: internet.nodes.get(libp2p_id(BOB.peer)) not in (None, first))
            assert internet.nodes[libp2p_id(BOB.peer)].listen == first.listen
            await until(lambda: bool(published(listener)))
            await talk(dialler, listener, address, BOB)

    run(main())


def test_a_peer_that_nobody_can_dial_is_reached_through_a_relay() -> None:
    async def main() -> None:
        async with peer(ALICE, Libp2pOptions(serves_relay=True)) as relay:
            public = await relay.listen(ANYWHERE)
            async with peer(BOB, Libp2pOptions(relays=(public,))) as hidden:
                assert await hidden.listen("") == f"{public}/p2p-circuit/p2p/{libp2p_name(BOB.peer)}"
                assert published(hidden) == (f"{public}/p2p-circuit",)
                await talk(relay, hidden, "dht:", BOB)

    run(main())


def test_a_stranger_is_found_as_soon_as_it_belongs_to_the_run(internet: Internet) -> None:
    """Members keep no records of strangers; one that has become a candidate publishes its own at once."""
    members = {ALICE.peer}
    where = dht_key(RUN, BOB.peer)

    async def main() -> None:
        async with peer(ALICE, Libp2pOptions(serves_relay=True), keeps=members.__contains__) as relay:
            public = await relay.listen(ANYWHERE)
            async with peer(BOB, Libp2pOptions(relays=(public,)), keeps=members.__contains__) as hidden:
                await hidden.listen("")
                with pytest.raises(UnreachableError, match="nobody in the DHT knows"):
                    await relay.dial("dht:", BOB.peer)
                members.add(BOB.peer)
                await until(lambda: where in internet.records)
                await talk(relay, hidden, "dht:", BOB)

    run(main())


def test_a_member_that_has_not_heard_of_the_newcomer_yet_is_asked_again(internet: Internet) -> None:
    members: set[PeerId] = set()

    async def main() -> None:
        async with peer(ALICE, Libp2pOptions(serves_relay=True), keeps=members.__contains__) as relay:
            public = await relay.listen(ANYWHERE)
            async with peer(BOB, Libp2pOptions(relays=(public,))) as hidden:
                await hidden.listen("")
                assert internet.records == {}
                members.add(BOB.peer)
                await until(lambda: dht_key(RUN, BOB.peer) in internet.records)

    run(main())


def test_a_record_published_alone_is_published_again_when_an_initial_peer_is_there(
    internet: Internet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libp2p_node, "_REJOIN_S", 0.02)

    async def main() -> None:
        entrance = f"/ip4/127.0.0.1/tcp/4100/p2p/{libp2p_name(ALICE.peer)}"
        async with peer(BOB, Libp2pOptions(initial_peers=(entrance,))) as early, peer(ALICE) as late:
            await early.listen(ANYWHERE)
            assert internet.records.pop(dht_key(RUN, BOB.peer))  # nobody but itself has kept it
            await late.listen("127.0.0.1:4100")
            await until(lambda: dht_key(RUN, BOB.peer) in internet.records)

    run(main())


def test_the_manifest_is_a_way_into_the_dht() -> None:
    """Founders that have an address are the initial peers, unless others are given."""
    home = f"/ip4/203.0.113.5/tcp/4001/p2p/{libp2p_name(BOB.peer)}"
    other = f"/ip4/203.0.113.9/tcp/4001/p2p/{libp2p_name(ALICE.peer)}"
    local = LocalPeer(ALICE, LIMITS, RUN, anyone, {BOB.peer: "203.0.113.5:4001", ALICE.peer: ""})
    for options, expected in (
        (Libp2pOptions(), (home,)),
        (Libp2pOptions(relays=(other, home)), (other, home)),
        (Libp2pOptions(initial_peers=(other,)), (other,)),
    ):
        assert options.make(local)._setup.initial_peers == expected


def test_a_relay_that_passes_on_too_little_or_is_not_there_is_named(
    internet: Internet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libp2p, "_RESERVE_S", 0.02)
    monkeypatch.setattr(libp2p, "_RELAY_PATIENCE_S", 0.1)

    async def main() -> None:
        absent = f"/ip4/127.0.0.1/tcp/1/p2p/{libp2p_name(ALICE.peer)}"
        async with peer(BOB, Libp2pOptions(relays=(absent,))) as hidden:
            with pytest.raises(ListenError, match=r"no relay took this peer within 0\.1 s"):
                await hidden.listen("")
        async with peer(ALICE) as relay:
            public = await relay.listen(ANYWHERE)
            internet.relay_limit = 131_072
            async with peer(BOB, Libp2pOptions(relays=(public,))) as hidden:
                with pytest.raises(ListenError, match="passes on only 131072 bytes"):
                    await hidden.listen("")

    run(main())
    assert internet.nodes == {}


@pytest.mark.parametrize(("off_s", "says"), [(-400.0, "clock is 400 s ahead of"), (400.0, "clock is 400 s behind")])
def test_a_clock_with_which_nobody_is_found_is_told(internet: Internet, off_s: float, says: str) -> None:
    async def main() -> None:
        internet.clocks[libp2p_id(ALICE.peer)] = off_s
        async with peer(ALICE) as entrance:
            address = await entrance.listen(ANYWHERE)
            async with peer(BOB, Libp2pOptions(initial_peers=(address,))) as newcomer:
                with pytest.raises(ListenError, match=f"{says} .* set the clock"):
                    await newcomer.listen(ANYWHERE)
            internet.clocks.clear()
            async with peer(BOB, Libp2pOptions(initial_peers=(address,))) as newcomer:
                await newcomer.listen(ANYWHERE)

    run(main())


def test_one_wrong_clock_among_several_stops_nobody(internet: Internet) -> None:
    async def main() -> None:
        liar, *honest = (Identity.from_secret(bytes([k]) * 32) for k in (1, 2, 3))
        internet.clocks[libp2p_id(liar.peer)] = 1e9
        async with AsyncExitStack() as stack:
            entrances = [await stack.enter_async_context(peer(one)) for one in (liar, *honest)]
            addresses = tuple([await one.listen(ANYWHERE) for one in entrances])
            newcomer = await stack.enter_async_context(peer(BOB, Libp2pOptions(initial_peers=addresses)))
            await newcomer.listen(ANYWHERE)

    run(main())


def test_it_listens_once_and_not_after_it_was_closed() -> None:
    async def main() -> None:
        async with peer(BOB) as listener:
            await listener.listen(ANYWHERE)
            with pytest.raises(ListenError, match="listens once"):
                await listener.listen(ANYWHERE)
        with pytest.raises(TransportClosedError):
            await listener.listen(ANYWHERE)
        with pytest.raises(TransportClosedError):
            await listener.accept()
        with pytest.raises(UnreachableError, match="closed"):
            await listener.dial("dht:", ALICE.peer)
        assert published(listener) == ()

    run(main())
