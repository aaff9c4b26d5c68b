"""One liar floods a peer with frames of invented slots: early frames of honest peers are still there when they are needed."""

from typing import Any

import pytest

from tests.protocol.channel_internals import frames_for_later, let_pass
from troth.crypto import Digest, Identity, PeerId, Slot, derive
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.channel import AttemptView, Gather
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.frames import BlobSent, Packet, PartSent, Value, View
from troth.protocol.wire.messages import Commit, Phase
from troth.protocol.wire.phases import seal
from troth.protocol.wire.primitives import Primitives
from troth.workshop.chaos.virtual_time import VirtualTime

IDS = [Identity.from_secret(derive(0, "flood", k)) for k in range(3)]
EVERYONE = AttemptView(frozenset(one.peer for one in IDS))
FIRST, SECOND = (Slot(Digest(bytes(32)), step, Phase.COMMIT) for step in (0, 1))


def commit(number: int) -> Commit:
    return Commit(None, bytes([number]) * 32, bytes(32))


@pytest.mark.parametrize("flooded", [False, True])
def test_early_values_survive_a_flood(flooded: bool) -> None:
    """[Q1, M3] A begins the second announcement before B does, so its value is early at B; a liar fills B with junk."""
    time: VirtualTime[Any] = VirtualTime(lambda *_: (0.05,))
    kept: dict[int, int] = {}

    async def honest(identity: Identity, number: int) -> list[PeerId]:
        channel = BroadcastChannel(identity, time.link(identity.peer), Timeouts(memory=1 << 20), Primitives())
        await channel.announce(FIRST, commit(number), EVERYONE)
        if number == 1:
            await let_pass(channel, 0.8)  # it computes for a moment
            kept[number] = frames_for_later(channel)
        return list(await channel.announce(SECOND, commit(number), EVERYONE))

    async def liar(identity: Identity, number: int) -> None:
        link = time.link(identity.peer)
        channel = BroadcastChannel(identity, link, Timeouts(), Primitives())
        await channel.announce(FIRST, commit(number), EVERYONE)
        for k in range(3000 if flooded else 0):
            for slot in (SECOND._replace(incarnation=k), SECOND._replace(attempt=k + 1), SECOND._replace(step=k)):
                link.send(IDS[1].peer, Packet(slot, View(None, bytes(64))))
            link.send(IDS[1].peer, Packet(SECOND._replace(step=k + 9), PartSent(0, (), memoryview(bytes(8)))))
            link.send(IDS[1].peer, Packet(SECOND, BlobSent(memoryview(k.to_bytes(8, "big")))))
        for one in IDS[:2]:
            link.send(one.peer, Packet(SECOND, Value(seal(identity, SECOND, commit(number)))))

    members = {one.peer: (honest if k < 2 else liar)(one, k) for k, one in enumerate(IDS)}
    time.run(members, most_events=10**6)
    everyone = sorted(one.peer for one in IDS)
    honest_two = {one.peer for one in IDS[:2]}
    for one in IDS[:2]:
        said = set(time.results[one.peer])
        assert honest_two <= said <= set(everyone), "an honest value was lost"
    assert set(time.results[IDS[0].peer]) == set(time.results[IDS[1].peer])
    assert kept[1] < 1100, "what is kept for later is bounded, whatever a liar sends"


def test_a_blob_is_what_has_its_digest_whoever_sends_it() -> None:
    """[A3] A liar sends something else first; the owner's own comes later, and counts."""
    time: VirtualTime[Any] = VirtualTime(lambda *_: (0.05,))
    clip, right = FIRST._replace(phase=Phase.CLIP), b"right" * 8
    wanted = {0: Primitives().digest(right)}

    async def member(identity: Identity, number: int) -> Any:
        link = time.link(identity.peer)
        channel = BroadcastChannel(identity, link, Timeouts(), Primitives())
        await channel.announce(FIRST, commit(number), EVERYONE)
        if number == 2:
            link.send(IDS[1].peer, Packet(clip, BlobSent(memoryview(b"wrong" * 8))))
        if number == 0:
            await let_pass(channel, 0.3)
        return await channel.exchange(clip, Gather({0: Blob(right)} if number == 0 else {}, wanted, {}), EVERYONE)

    time.run({one.peer: member(one, k) for k, one in enumerate(IDS)}, most_events=10**5)
    assert time.results[IDS[1].peer] == {0: Blob(right)}
