"""[Q1–Q6, M3] A peer among liars who know the format: it comes to its end, and what it keeps of them has a bound."""

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from tests.fuzz.drawn import drawn, field_types
from tests.fuzz.message_inputs import FRAMES
from tests.fuzz.sessions import (
    ANNOUNCED,
    COMMIT_SLOT,
    DISPUTED_LINKS,
    LIARS,
    ME,
    MEMBERS,
    MINE,
    TOOLS,
    PreparedLink,
    Sender,
    channel_on,
    feed_announcement,
    feed_channel,
    fresh_session,
    hostile_session,
    kept_bytes,
    new_announcement,
    recorded,
    run_alone,
    session_bytes,
    session_of,
    signed_value,
)
from troth.crypto import PeerId, Slot, derive
from troth.protocol.broadcast.announcement import Announcement, Decision, chain_bytes
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.core.channel import AttemptView
from troth.protocol.wire.frames import (
    AGREEMENT,
    BlobSent,
    BlobWanted,
    Certificate,
    Chained,
    Frame,
    Packet,
    PartSent,
    PartShown,
    Relayed,
    Value,
    View,
)
from troth.protocol.wire.messages import Phase

ROOM = 1 << 17  # bytes that one peer may take up, in the floods below
FLOOD = 1000  # frames


def test_a_session_can_be_written_down() -> None:
    session = hostile_session(Random(1), 20)
    assert session_of(session_bytes(session)) == sorted(session)


def test_the_recordings_hold_what_members_say_to_each_other() -> None:
    """The quiet path, the slow one, blobs, and relayed frames: else the sessions would test little."""
    kinds = {type(packet.frame) for recording in recorded() for _, _, packet in recording}
    assert kinds >= {Value, View, Certificate, Chained, Relayed}
    assert kinds >= {PartSent, BlobSent, BlobWanted, PartShown}


def test_without_lies_everyone_is_heard() -> None:
    """The exchange that is damaged is a real one."""
    announcement = new_announcement()
    for at, sender, packet in recorded()[0]:
        if packet.slot == COMMIT_SLOT and isinstance(packet.frame, AGREEMENT):
            announcement.hear(sender_of(sender), packet.frame, at)
    assert announcement.decision is not None
    assert announcement.decision.said.keys() == MEMBERS


def sender_of(number: Sender) -> PeerId:
    return LIARS[number].peer


@pytest.mark.parametrize("seed", range(3))
def test_a_member_that_hears_nothing_ends_too(seed: int) -> None:
    assert feed_channel([]).inputs == feed_announcement([]).inputs == 0
    feed_channel(fresh_session(Random(seed), 7))


def test_a_certificate_from_before_a_restart_is_no_crash() -> None:
    """[B1] Everyone's views are in it, this peer's own too; but the values that it stands for are not at hand any more."""
    certificates = [
        (sender, packet.frame)
        for _, sender, packet in recorded()[0]
        if isinstance(packet.frame, Certificate) and packet.slot == COMMIT_SLOT
    ]
    announcement = new_announcement()
    for sender, certificate in certificates:
        assert ME.peer in certificate.views
        announcement.hear(sender_of(sender), certificate, 1.0)
    assert decided(announcement).said == {ME.peer: MINE}


def decided(announcement: Announcement) -> Decision:
    """After all that time can do."""
    while announcement.deadline is not None:
        announcement.tick(announcement.deadline)
    assert announcement.decision is not None
    return announcement.decision


# Memory


def flood(channel: BroadcastChannel, link: PreparedLink) -> int:
    """Bytes that the channel keeps when the first announcement ends."""

    async def announce() -> None:
        await channel.announce(COMMIT_SLOT, ANNOUNCED[Phase.COMMIT], AttemptView(MEMBERS, DISPUTED_LINKS))

    run_alone(announce())
    assert not link.waiting, "all of it was heard"
    return kept_bytes(channel)


def frames_of(kind: type[Any], random: Random) -> Frame:
    """Payloads as long as a liar likes, and never twice the same."""
    frame: Frame = drawn(kind, random)
    long = {"blob": random.randbytes(1000), "state": random.randbytes(1000)}
    return msgspec.structs.replace(frame, **{name: raw for name, raw in long.items() if name in field_types(kind)})


def slots(random: Random) -> Slot:
    """All that an honest peer may hear of in this moment, and some that it may not."""
    return COMMIT_SLOT._replace(
        step=random.choice((0, 0, 1, 2)),
        phase=random.randint(1, max(Phase)),
        attempt=random.choice((0, 0, random.randrange(20))),
    )


def flooded(kind: type[Any], senders: Sequence[PeerId], memory: int = ROOM) -> int:
    random = Random(kind.__name__)
    packets = [
        (k / FLOOD, senders[k % len(senders)], Packet(slots(random), frames_of(kind, random))) for k in range(FLOOD)
    ]
    link = PreparedLink(packets)
    return flood(channel_on(link, memory=memory), link)


@pytest.mark.parametrize("kind", FRAMES)
def test_a_flood_from_one_member_is_bounded(kind: type[Any]) -> None:
    """[M3] Thousands of frames of one kind, all different, for all slots: the peer keeps what it has room for."""
    assert flooded(kind, [LIARS[0].peer]) < 4 * ROOM


@pytest.mark.parametrize("kind", FRAMES)
def test_a_flood_from_strangers_is_bounded(kind: type[Any]) -> None:
    """[M3] Keys cost nothing: a room for each of them would be no bound. All together have less than one member has."""
    strangers = [PeerId(derive(0, "stranger", k)) for k in range(FLOOD)]
    assert flooded(kind, strangers) < ROOM // 2


def test_what_is_kept_is_seen() -> None:
    """The two tests above can fail: where there is room for it, the flood stays."""
    assert flooded(BlobSent, [LIARS[0].peer], memory=1 << 30) > 4 * ROOM


def sent_after(announcement: Announcement, now: float, number: int) -> int:
    """All liars say something new, alone and in a chain of all of them: how many frames this peer sends because of that."""
    for liar in LIARS:
        envelope = signed_value(liar, COMMIT_SLOT, number.to_bytes(200, "big"))
        digest = TOOLS.digest(envelope.payload)
        chain: dict[bytes, bytes] = {one.peer: one.sign(chain_bytes(COMMIT_SLOT, liar.peer, digest)) for one in LIARS}
        chain |= {derive(number, k): bytes(64) for k in range(20)}
        for frame in (Value(envelope), Chained(liar.peer, envelope, chain)):
            announcement.hear(liar.peer, frame, now)
    return len(announcement.take())


@pytest.mark.parametrize("slow", [False, True])
def test_an_announcement_keeps_two_values_of_each(slow: bool) -> None:
    """[Q1, Q5] A liar's third value, and every later one, is neither kept nor passed on, before the rounds and in them."""
    announcement, now = new_announcement(), 0.0
    while slow and not any(isinstance(frame, Chained) for frame in announcement.take()):
        assert announcement.deadline is not None
        now = announcement.deadline
        announcement.tick(now)
    announcement.take()
    first = [sent_after(announcement, now, number) for number in range(2)]
    kept = kept_bytes(announcement)
    later = [sent_after(announcement, now, number) for number in range(2, 50)]
    assert first == ([len(LIARS)] * 2 if slow else [1, 0])  # every value in a chain; or a view, as all have spoken
    assert not any(later)
    assert kept_bytes(announcement) == kept
    assert len(decided(announcement).equivocations) == len(LIARS), "that they said two things is known, and proved"
