"""A cap on what leaves the machine."""

import asyncio
import time
from dataclasses import replace

import pytest

from tests.network.transport.endpoints import LIMITS, MB, run, transport
from troth.crypto.identity import Identity
from troth.network.transport.base import Lane
from troth.network.transport.framing import CHUNK_BYTES, TokenBucket


def test_a_bucket_lets_through_its_rate() -> None:
    now, bucket, sent = 0.0, TokenBucket(1_000_000, 0.0), 0
    while now < 10:
        wait = bucket.ready_in(now)
        if wait == 0:
            bucket.spend(100_000)
            sent += 100_000
        now += wait
    assert 10_000_000 <= sent <= 10_000_000 + CHUNK_BYTES + 100_000


@pytest.mark.long
def test_a_cap_holds_over_all_connections_and_control_goes_first() -> None:
    async def main() -> None:
        identity = Identity.generate()
        capped = replace(LIMITS, bytes_per_second=2 * MB)
        async with transport(capped) as dialler, transport(identity=identity) as listener:
            address = await listener.listen("127.0.0.1:0")
            connections = [await dialler.dial(address, identity.peer) for _ in range(2)]
            ends = [await listener.accept() for _ in connections]
            for end in ends:
                end.recognise(known=True)
            began = time.monotonic()
            for connection in connections:
                connection.send(Lane.BULK, bytes(MB))
            connections[1].send(Lane.CONTROL, b"urgent")
            assert await ends[1].receive() == (Lane.CONTROL, b"urgent")
            assert time.monotonic() - began < 0.7
            await asyncio.gather(*(end.receive() for end in ends))
            # 2 MB at 2 MB a second, less what the bucket held at first, less the last chunk, which goes on credit.
            assert (2 * MB - 2 * CHUNK_BYTES) / (2 * MB) < time.monotonic() - began < 5

    run(main())
