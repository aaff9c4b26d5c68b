"""[M3] Room for one peer's frames in another's memory: a bound in bytes as they came off the link, for every kind of frame."""

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.drawn import drawn
from tests.fuzz.message_inputs import FRAMES
from tests.protocol.channel_internals import (
    begin_announcement,
    bytes_by_sender,
    enter_attempt,
    forget_step,
    has_blob,
    hear_packet,
    move_announcement,
    older_blobs,
    quota_bytes,
    recount_bytes,
)
from troth.crypto import Digest, Identity, PeerId, Slot, derive
from troth.network.node.node import drive
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.run import LeftOutError
from troth.protocol.wire.frames import (
    BlobSent,
    Certificate,
    Chained,
    Decided,
    Frame,
    Packet,
    PartSent,
    PartShown,
    Relayed,
    Value,
    View,
    decode_packet,
    encode_packet,
)
from troth.protocol.wire.messages import Commit, Envelope, Phase
from troth.protocol.wire.phases import most_bytes, seal
from troth.protocol.wire.primitives import Primitives

IDS = [Identity.from_secret(derive(0, "room", k)) for k in range(6)]
ME, OTHERS = IDS[0], [one.peer for one in IDS[1:]]
STEP = 5
COMMIT_SLOT = Slot(Digest(bytes(32)), STEP, Phase.COMMIT)
LATER_SLOT = COMMIT_SLOT._replace(phase=Phase.VOTE)
BOOKKEEPING = 1024


class QuietLink:
    """A link on which nothing comes by itself."""

    def now(self) -> float:
        return 0.0

    def send(self, to: PeerId, packet: Packet) -> None:
        pass

    async def receive(self, until: float) -> None:
        return None

    def gone(self) -> frozenset[PeerId]:
        return frozenset()


def new_channel(memory: int, *, observing: bool = False, begun: bool = True) -> BroadcastChannel:
    channel = BroadcastChannel(ME, QuietLink(), Timeouts(memory=memory), Primitives(), observing=observing)
    enter_attempt(channel, frozenset(one.peer for one in IDS))
    if begun:
        begin_announcement(channel, COMMIT_SLOT).say(seal(ME, COMMIT_SLOT, Commit(None, bytes(32), bytes(32))), 0.0)
    return channel


def hear(channel: BroadcastChannel, sender: PeerId, slot: Slot, frame: Frame) -> None:
    packet = decode_packet(encode_packet(Packet(slot, frame)), 1 << 26)
    assert isinstance(packet, Packet)
    hear_packet(channel, sender, packet)


def size(slot: Slot, frame: Frame) -> int:
    return len(encode_packet(Packet(slot, frame))) + BOOKKEEPING


def recounted(channel: BroadcastChannel) -> int:
    return recount_bytes(channel, size, BOOKKEEPING)


BLOB = bytes(300_000)
LONG: list[Frame] = [
    Value(Envelope(BLOB, bytes(64))),
    Relayed(OTHERS[1], Value(Envelope(BLOB, bytes(64)))),
    Chained(OTHERS[1], Envelope(BLOB, bytes(64)), {}),
    Chained(OTHERS[1], Envelope(b"", bytes(64)), {derive(0, k): bytes(64) for k in range(1000)}),
    Certificate(
        bytes(32), {derive(0, k): bytes(64) for k in range(1000)}, {derive(1, k): bytes(64) for k in range(1000)}
    ),
    Decided({derive(0, k): Envelope(b"", bytes(64)) for k in range(1000)}, {}),
    Decided({}, {OTHERS[1]: (Envelope(BLOB, bytes(64)), Envelope(b"", bytes(64)))}),
    PartSent(0, (), memoryview(BLOB)),
    PartShown(0, OTHERS[1], (bytes(32),) * 32, memoryview(BLOB)),
    BlobSent(memoryview(BLOB)),
]


@pytest.mark.parametrize("observing", [False, True])
@pytest.mark.parametrize("frame", LONG, ids=lambda frame: type(frame).__name__)
def test_no_kind_of_frame_is_free(frame: Frame, observing: bool) -> None:
    """A hundred for slots and of parts that are all different, from one member, into a megabyte."""
    memory = 1 << 20
    channel = new_channel(memory, observing=observing, begun=not observing)
    for number in range(100):
        slot = COMMIT_SLOT._replace(phase=Phase.VOTE, attempt=number % 20)
        different = msgspec.structs.replace(frame, part=number) if hasattr(frame, "part") else frame
        if isinstance(frame, BlobSent):
            different = BlobSent(memoryview(number.to_bytes(4, "big") + frame.blob))
        hear(channel, OTHERS[0], slot, different)
        assert recounted(channel) == channel.kept_bytes <= memory
    if not (isinstance(frame, Decided) and not observing):
        assert channel.kept_bytes > memory // 2, "what has room is kept"


def test_nobody_takes_up_anothers_room() -> None:
    channel = new_channel(1 << 20)
    for number in range(10):
        hear(channel, OTHERS[0], LATER_SLOT, BlobSent(memoryview(bytes([number]) * 300_000)))
    full = channel.kept_bytes
    hear(channel, OTHERS[1], COMMIT_SLOT._replace(phase=Phase.CLIP), PartSent(0, (), memoryview(b"part")))
    assert channel.kept_bytes == full + size(
        COMMIT_SLOT._replace(phase=Phase.CLIP), PartSent(0, (), memoryview(b"part"))
    )


def test_only_observers_take_decisions_of_members() -> None:
    """[B2] Members decide for themselves."""
    decided = Decided({OTHERS[1]: Envelope(b"said", bytes(64))}, {})
    member, observer = new_channel(1 << 20), new_channel(1 << 20, observing=True, begun=False)
    for channel in (member, observer):
        hear(channel, OTHERS[0], LATER_SLOT, decided)
    assert (member.kept_bytes, observer.kept_bytes) == (0, size(LATER_SLOT, decided))


@pytest.mark.parametrize(
    "wrap", [Value, lambda said: Chained(OTHERS[0], said, {}), lambda said: Relayed(OTHERS[0], Value(said))]
)
def test_a_payload_too_long_for_a_message_was_never_said(wrap: Any) -> None:
    """[M3, Q1] For every honest peer alike: it is a matter of its length alone. One byte less may be a message."""
    channel, slot = new_channel(1 << 26), COMMIT_SLOT._replace(phase=Phase.CLIP)
    hear(channel, OTHERS[0], slot, wrap(Envelope(bytes(most_bytes(Phase.CLIP) + 1), bytes(64))))
    assert channel.kept_bytes == 0
    hear(channel, OTHERS[0], slot, wrap(Envelope(bytes(most_bytes(Phase.CLIP)), bytes(64))))
    assert channel.kept_bytes > most_bytes(Phase.CLIP)


def test_a_frame_that_is_here_already_costs_nothing_a_second_time() -> None:
    """Networks deliver things twice."""
    channel, slot = new_channel(1 << 20), COMMIT_SLOT._replace(phase=Phase.CLIP)
    for _ in range(3):
        for frame in (
            PartSent(0, (), memoryview(bytes(400))),
            BlobSent(memoryview(bytes(400))),
            PartShown(1, OTHERS[1], (), memoryview(bytes(400))),
        ):
            hear(channel, OTHERS[0], slot, frame)
    assert quota_bytes(channel) == recounted(channel) < 3 * (400 + 1024 + 200)


def test_parts_of_an_attempt_that_was_given_up_are_refused() -> None:
    channel = new_channel(1 << 20)
    move_announcement(channel, COMMIT_SLOT._replace(attempt=1, phase=Phase.REPORT))
    hear(channel, OTHERS[0], COMMIT_SLOT._replace(phase=Phase.CLIP), PartSent(0, (), memoryview(bytes(400))))
    assert channel.kept_bytes == 0
    hear(channel, OTHERS[0], COMMIT_SLOT._replace(phase=Phase.CLIP, attempt=1), PartSent(0, (), memoryview(bytes(400))))
    assert channel.kept_bytes > 0


def test_the_next_step_does_not_forget_what_is_still_kept() -> None:
    """A liar fills its room for the step after this one, and again when this one is over: it has one room, not two."""
    memory = 1 << 20
    channel, after = new_channel(memory), COMMIT_SLOT._replace(step=STEP + 1)
    for step in (STEP, STEP, STEP + 1, STEP + 2):
        for number in range(40):
            hear(
                channel,
                OTHERS[0],
                after._replace(attempt=number % 20),
                Chained(OTHERS[1], Envelope(bytes(1000), bytes(64)), {}),
            )
            hear(channel, OTHERS[0], after._replace(phase=Phase.CLIP), PartSent(number, (), memoryview(bytes(40_000))))
            hear(
                channel,
                OTHERS[0],
                after._replace(phase=Phase.CLIP),
                BlobSent(memoryview(number.to_bytes(4, "big") + bytes(40_000))),
            )
            assert recounted(channel) == channel.kept_bytes <= memory
        forget_step(channel, step)
        assert recounted(channel) == channel.kept_bytes
    forget_step(channel, STEP + 3)
    forget_step(channel, STEP + 4)
    assert channel.kept_bytes == recounted(channel) == 0, "nothing grows from step to step"


def test_aggregates_kept_for_observers_make_way_for_new_ones() -> None:
    """[B2] An observer may ask another; a member in the step may not be short of room because of that."""
    channel, clip = new_channel(1 << 20), COMMIT_SLOT._replace(phase=Phase.CLIP)
    channel.catch_up.observers = frozenset({PeerId(bytes(32))})
    for step in range(4):
        blob = bytes([step]) * 400_000
        hear(channel, OTHERS[0], clip, BlobSent(memoryview(blob)))
        assert has_blob(channel, Primitives().digest(blob))
        forget_step(channel, STEP)
        assert recounted(channel) == channel.kept_bytes <= 1 << 20
    assert len(older_blobs(channel)) == 4
    assert sum(older_blobs(channel)) == 2


ACTIONS = st.lists(st.tuples(st.integers(0, len(OTHERS) - 1), st.integers(0, 10**9)), max_size=60)


@settings(max_examples=150, deadline=None)
@given(ACTIONS, st.sampled_from([4_000, 20_000, 100_000]), st.booleans(), st.integers(0, 3))
def test_whatever_comes_is_within_everyones_room(
    actions: list[tuple[int, int]], memory: int, observing: bool, observers: int
) -> None:
    """Frames of all kinds, slots and lengths, in any order, while steps go by: counted exactly, and never more than that."""
    channel = new_channel(memory, observing=observing, begun=not observing)
    channel.catch_up.observers = frozenset(PeerId(bytes([k]) * 32) for k in range(observers))
    step = STEP
    for number, seed in actions:
        random = Random(seed)
        if not random.randrange(12):
            forget_step(channel, step)
            step += 1
            move_announcement(channel, COMMIT_SLOT._replace(step=step))
        slot = COMMIT_SLOT._replace(
            step=step + random.choice((-1, 0, 0, 1)), phase=random.choice(list(Phase)), attempt=random.randrange(3)
        )
        hear(channel, OTHERS[number], slot, _frame(random))
        assert recounted(channel) == channel.kept_bytes <= memory * len(OTHERS)
        assert all(taken <= memory for taken in bytes_by_sender(channel))


def _frame(random: Random) -> Frame:
    frame: Frame = drawn(random.choice(FRAMES), random)
    return (
        msgspec.structs.replace(frame, blob=random.randbytes(random.randrange(3000)))
        if hasattr(frame, "blob")
        else frame
    )


def test_a_packet_counts_as_it_came_off_the_link() -> None:
    """Also where MessagePack could have been shorter; and without a network it is encoded to know."""
    packet = Packet(LATER_SLOT, View(None, bytes(64)))
    raw = encode_packet(packet)
    assert packet.size == len(raw)
    padded = raw.replace(b"\xc4\x40" + bytes(64), b"\xc6\x00\x00\x00\x40" + bytes(64))
    came = decode_packet(padded, 1 << 20)
    assert came == packet
    assert isinstance(came, Packet)
    assert came.size == len(padded) == len(raw) + 3


def test_an_observer_that_cannot_follow_any_more_asks_anew_and_does_not_wait_for_its_deadline() -> None:
    """[B7] Eight steps behind it keeps what comes; further behind, one word more than liars have is enough."""
    channel = new_channel(1 << 20, observing=True, begun=False)
    channel._begin(COMMIT_SLOT, channel.position.view)
    near, far = (COMMIT_SLOT._replace(step=COMMIT_SLOT.step + ahead) for ahead in (8, 9))
    for sender in OTHERS:
        hear(channel, sender, near, Decided({}, {}))
    drive(channel.hear_one(1.0))
    needed = channel.position.voices
    for sender in OTHERS[: needed - 1]:
        hear(channel, sender, far, Decided({}, {}))
    drive(channel.hear_one(1.0))
    hear(channel, OTHERS[needed - 1], far, Decided({}, {}))
    with pytest.raises(LeftOutError, match="steps ahead"):
        drive(channel.hear_one(1.0))
