"""A connection between honest peers: order, bounds, closing, and patience."""

import asyncio
import time
from dataclasses import replace

import pytest

from tests.network.transport.endpoints import HASTY, LIMITS, MB, pair, run, until
from troth.network.transport.base import Lane, TransportLimits


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
            await until(lambda: far.bytes_in == near.bytes_out)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert await far.receive() == (Lane.CONTROL, b"one")

    run(main())


@pytest.mark.long
def test_a_reader_that_does_not_read_stops_the_writer_and_loses_nothing() -> None:
    async def main() -> None:
        async with pair(LIMITS, replace(LIMITS, most_received_bytes=MB)) as (near, far):
            for i in range(40):
                assert near.send(Lane.BULK, bytes([i]) * MB)
            await until(lambda: far.reading_paused)
            assert far.waiting_bytes <= 3 * MB
            for i in range(40):
                got = await far.receive()
                assert got is not None
                assert (len(got[1]), got[1][0], got[1][-1]) == (MB, i, i)

    run(main())


@pytest.mark.long
def test_a_slow_reader_is_not_taken_for_a_dead_one() -> None:
    """While we do not read we do not hear; that is not the fault of the other side, and it hears our pings."""

    async def main() -> None:
        slow = replace(HASTY, most_received_bytes=1)
        async with pair(HASTY, slow) as (near, far):
            near.send(Lane.BULK, bytes(20 * MB))
            near.send(Lane.BULK, bytes(20 * MB))
            await until(lambda: far.reading_paused)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.gather(near.closed(), far.closed()), 3 * HASTY.idle_s)
            assert (await far.receive(), await far.receive()) == ((Lane.BULK, bytes(20 * MB)),) * 2

    run(main())


@pytest.mark.long
def test_an_idle_connection_stays_up() -> None:
    async def main() -> None:
        async with pair(HASTY) as (near, far):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.gather(near.closed(), far.closed()), 2.5 * HASTY.idle_s)
            near.send(Lane.CONTROL, b"still here")
            assert await far.receive() == (Lane.CONTROL, b"still here")

    run(main())


@pytest.mark.long
def test_a_queue_over_its_bound_closes_the_connection() -> None:
    async def main() -> None:
        small = TransportLimits(most_control_bytes=100, most_bulk_bytes=MB, most_queued_bytes=5 * MB)
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


@pytest.mark.long
def test_closing_does_not_wait_for_a_peer_that_does_not_listen() -> None:
    async def main() -> None:
        async with pair(LIMITS, replace(LIMITS, most_received_bytes=1)) as (near, far):
            far_reads_nothing = far
            near.send(Lane.BULK, bytes(30 * MB))
            near.send(Lane.BULK, bytes(30 * MB))
            await until(lambda: far_reads_nothing.reading_paused)
            for _ in range(100):
                near.send(Lane.CONTROL, bytes(MB // 2))
            began = time.monotonic()
            near.close()
            await near.closed()
            assert time.monotonic() - began < 5

    run(main())


@pytest.mark.long
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
