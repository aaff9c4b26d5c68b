"""[M3] What one peer may put into another's memory: a bound in bytes as they came off the line, for every kind of frame."""

from collections.abc import Iterable
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.drawn import drawn
from tests.fuzz.targets import FRAMES
from troth.crypto import Digest, Identity, PeerId, Slot, derive
from troth.protocol.broadcast.channel import AgreedChannel
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.channel import Entry
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
from troth.protocol.wire.messages import Commit, Envelope, Phase, most_bytes, seal
from troth.protocol.wire.primitives import Primitives

IDS = [Identity.from_secret(derive(0, "room", k)) for k in range(6)]
ME, OTHERS = IDS[0], [one.peer for one in IDS[1:]]
STEP = 5
HERE = Slot(Digest(bytes(32)), STEP, Phase.COMMIT)
LATER = HERE._replace(phase=Phase.VOTE)
BOOKKEEPING = 1024


class Quiet:
    """A line on which nothing comes by itself."""

    def now(self) -> float:
        return 0.0

    def send(self, to: PeerId, packet: Packet) -> None:
        pass

    async def receive(self, until: float) -> None:
        return None

    def gone(self) -> frozenset[PeerId]:
        return frozenset()


def channel(room: int, *, observing: bool = False, begun: bool = True) -> AgreedChannel:
    made = AgreedChannel(ME, Quiet(), Timeouts(room=room), Primitives(), observing=observing)
    made.enter(Entry(frozenset(one.peer for one in IDS)))
    if begun:
        made._begin(HERE).say(seal(ME, HERE, Commit(None, bytes(32), bytes(32))), 0.0)
    return made


def hear(at: AgreedChannel, sender: PeerId, slot: Slot, frame: Frame) -> None:
    packet = decode_packet(encode_packet(Packet(slot, frame)), 1 << 26)
    assert isinstance(packet, Packet)
    at._dispatch(sender, packet)


def size(slot: Slot, frame: Frame) -> int:
    return len(encode_packet(Packet(slot, frame))) + BOOKKEEPING


def recounted(at: AgreedChannel) -> int:
    """Everything that is there from others, looked up where it lies."""
    packets: Iterable[tuple[Slot, Frame]] = (
        *((slot, one.frame) for slot, waiting in at._early_frames._packets.items() for _, one in waiting),
        *(
            (slot, PartSent(part, proven.blob, proven.path))
            for slot, parts in at._parts.items()
            for part, senders in parts.items()
            for proven in senders.values()
        ),
        *(
            (slot, PartShown(part, whose, proven.blob, proven.path))
            for slot, shown in at._shown.items()
            for (part, _), proven_parts in shown.items()
            for whose, proven in proven_parts.items()
        ),
    )
    blobs = (*at._blobs._here.values(), *(h for old in at._blobs._older for h in old.values()))
    return sum(size(*one) for one in packets) + sum(
        held.size + BOOKKEEPING for held in blobs if held.sender is not None
    )


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
    PartSent(0, BLOB, ()),
    PartShown(0, OTHERS[1], BLOB, (bytes(32),) * 32),
    BlobSent(BLOB),
]


@pytest.mark.parametrize("observing", [False, True])
@pytest.mark.parametrize("frame", LONG, ids=lambda frame: type(frame).__name__)
def test_no_kind_of_frame_is_free(frame: Frame, observing: bool) -> None:
    """A hundred at places and of parts that are all different, from one member, into a megabyte."""
    room = 1 << 20
    at = channel(room, observing=observing, begun=not observing)
    for number in range(100):
        slot = HERE._replace(phase=Phase.VOTE, attempt=number % 20)
        different = msgspec.structs.replace(frame, part=number) if hasattr(frame, "part") else frame
        if isinstance(frame, BlobSent):
            different = BlobSent(number.to_bytes(4, "big") + frame.blob)
        hear(at, OTHERS[0], slot, different)
        assert recounted(at) == at.kept_bytes <= room
    if not (isinstance(frame, Decided) and not observing):
        assert at.kept_bytes > room // 2, "what has room is kept"


def test_nobody_takes_up_anothers_room() -> None:
    at = channel(1 << 20)
    for number in range(10):
        hear(at, OTHERS[0], LATER, BlobSent(bytes([number]) * 300_000))
    full = at.kept_bytes
    hear(at, OTHERS[1], HERE._replace(phase=Phase.CLIP), PartSent(0, b"part", ()))
    assert at.kept_bytes == full + size(HERE._replace(phase=Phase.CLIP), PartSent(0, b"part", ()))


def test_only_onlookers_take_what_members_decided() -> None:
    """[B2] Members decide for themselves."""
    told = Decided({OTHERS[1]: Envelope(b"said", bytes(64))}, {})
    member, observer = channel(1 << 20), channel(1 << 20, observing=True, begun=False)
    for at in (member, observer):
        hear(at, OTHERS[0], LATER, told)
    assert (member.kept_bytes, observer.kept_bytes) == (0, size(LATER, told))


@pytest.mark.parametrize(
    "wrap", [Value, lambda said: Chained(OTHERS[0], said, {}), lambda said: Relayed(OTHERS[0], Value(said))]
)
def test_what_is_too_long_for_a_message_was_never_said(wrap: Any) -> None:
    """[M3, Q1] For every honest peer alike: it is a matter of its length alone. One byte less may be a message."""
    at, slot = channel(1 << 26), HERE._replace(phase=Phase.CLIP)
    hear(at, OTHERS[0], slot, wrap(Envelope(bytes(most_bytes(Phase.CLIP) + 1), bytes(64))))
    assert at.kept_bytes == 0
    hear(at, OTHERS[0], slot, wrap(Envelope(bytes(most_bytes(Phase.CLIP)), bytes(64))))
    assert at.kept_bytes > most_bytes(Phase.CLIP)


def test_what_is_here_already_costs_nothing_a_second_time() -> None:
    """Networks deliver things twice."""
    at, slot = channel(1 << 20), HERE._replace(phase=Phase.CLIP)
    for _ in range(3):
        for frame in (PartSent(0, bytes(400), ()), BlobSent(bytes(400)), PartShown(1, OTHERS[1], bytes(400), ())):
            hear(at, OTHERS[0], slot, frame)
    assert at._quota.kept_bytes == recounted(at) < 3 * (400 + 1024 + 200)


def test_parts_of_an_attempt_that_was_given_up_are_refused() -> None:
    at = channel(1 << 20)
    at._running = (HERE._replace(attempt=1, phase=Phase.REPORT), at._running[1]) if at._running else None
    hear(at, OTHERS[0], HERE._replace(phase=Phase.CLIP), PartSent(0, bytes(400), ()))
    assert at.kept_bytes == 0
    hear(at, OTHERS[0], HERE._replace(phase=Phase.CLIP, attempt=1), PartSent(0, bytes(400), ()))
    assert at.kept_bytes > 0


def test_the_next_step_does_not_forget_what_is_still_kept() -> None:
    """A liar fills its room for the step after this one, and again when this one is over: it has one room, not two."""
    room = 1 << 20
    at, after = channel(room), HERE._replace(step=STEP + 1)
    for step in (STEP, STEP, STEP + 1, STEP + 2):
        for number in range(40):
            hear(
                at,
                OTHERS[0],
                after._replace(attempt=number % 20),
                Chained(OTHERS[1], Envelope(bytes(1000), bytes(64)), {}),
            )
            hear(at, OTHERS[0], after._replace(phase=Phase.CLIP), PartSent(number, bytes(40_000), ()))
            hear(at, OTHERS[0], after._replace(phase=Phase.CLIP), BlobSent(number.to_bytes(4, "big") + bytes(40_000)))
            assert recounted(at) == at.kept_bytes <= room
        at._forget(step)
        assert recounted(at) == at.kept_bytes
    at._forget(STEP + 3)
    at._forget(STEP + 4)
    assert at.kept_bytes == recounted(at) == 0, "nothing grows from step to step"


def test_aggregates_kept_for_onlookers_make_way_for_new_ones() -> None:
    """[B2] Who looks on may ask another; who is in the step may not be short of room because of that."""
    at, clip = channel(1 << 20), HERE._replace(phase=Phase.CLIP)
    at.catch_up.observers = frozenset({PeerId(bytes(32))})
    for step in range(4):
        blob = bytes([step]) * 400_000
        hear(at, OTHERS[0], clip, BlobSent(blob))
        assert Primitives().digest(blob) in at._blobs
        at._forget(STEP)
        assert recounted(at) == at.kept_bytes <= 1 << 20
    assert len(at._blobs._older) == 4
    assert sum(map(len, at._blobs._older)) == 2


ACTIONS = st.lists(st.tuples(st.integers(0, len(OTHERS) - 1), st.integers(0, 10**9)), max_size=60)


@settings(max_examples=150, deadline=None)
@given(ACTIONS, st.sampled_from([4_000, 20_000, 100_000]), st.booleans(), st.integers(0, 3))
def test_whatever_comes_is_within_everyones_room(
    actions: list[tuple[int, int]], room: int, observing: bool, observers: int
) -> None:
    """Frames of all kinds, places and lengths, in any order, while steps go by: counted exactly, and never more than that."""
    at = channel(room, observing=observing, begun=not observing)
    at.catch_up.observers = frozenset(PeerId(bytes([k]) * 32) for k in range(observers))
    step = STEP
    for number, seed in actions:
        random = Random(seed)
        if not random.randrange(12):
            at._forget(step)
            step += 1
            at._running = (HERE._replace(step=step), at._running[1]) if at._running is not None else None
        slot = HERE._replace(
            step=step + random.choice((-1, 0, 0, 1)), phase=random.choice(list(Phase)), attempt=random.randrange(3)
        )
        hear(at, OTHERS[number], slot, _frame(random))
        assert recounted(at) == at.kept_bytes <= room * len(OTHERS)
        assert all(taken <= room for taken in at._quota._taken.values())


def _frame(random: Random) -> Frame:
    frame: Frame = drawn(random.choice(FRAMES), random)
    return (
        msgspec.structs.replace(frame, blob=random.randbytes(random.randrange(3000)))
        if hasattr(frame, "blob")
        else frame
    )


def test_a_packet_counts_as_it_came_off_the_line() -> None:
    """Also where MessagePack could have been shorter; and without a network it is encoded to know."""
    packet = Packet(LATER, View(None, bytes(64)))
    raw = encode_packet(packet)
    assert packet.size == len(raw)
    padded = raw.replace(b"\xc4\x40" + bytes(64), b"\xc6\x00\x00\x00\x40" + bytes(64))
    came = decode_packet(padded, 1 << 20)
    assert came == packet
    assert isinstance(came, Packet)
    assert came.size == len(padded) == len(raw) + 3
