"""Framing: whatever the cuts, messages come out whole and in order; whatever the bytes, memory stays bounded."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from troth.network.transport.base import Lane, Received
from troth.network.transport.framing import (
    CHUNK_BYTES,
    HEADER,
    LARGEST_CHUNK_BYTES,
    MESSAGE_OVERHEAD,
    PING,
    SMALLEST_CHUNK_BYTES,
    Assembler,
    ChunkKind,
    MalformedError,
    Outbox,
    goodbye,
    reason_of,
)

MOST_CONTROL, MOST_BULK = 600_000, 5_000_000


def assembler() -> Assembler:
    made = Assembler(MOST_CONTROL)
    made.allow(MOST_CONTROL, MOST_BULK)
    return made


def feed(inbox: Assembler, stream: bytes, cuts: list[int] | None = None) -> list[tuple[ChunkKind, Received]]:
    """Hand over the stream in reads of the given sizes, over and over."""
    done: list[tuple[ChunkKind, Received]] = []
    at, turn = 0, 0
    while at < len(stream):
        space = inbox.buffer()
        assert len(space) > 0
        size = min(len(space), len(stream) - at, cuts[turn % len(cuts)] if cuts else len(stream))
        space[:size] = stream[at : at + size]
        del space
        done += inbox.filled(size)
        at += size
        turn += 1
    return done


def drained(outbox: Outbox) -> bytes:
    parts: list[bytes | memoryview] = []
    while (chunk := outbox.next_chunk()) is not None:
        parts += [chunk[0], *chunk[1]]
    return b"".join(parts)


def body(length: int, salt: int) -> bytes:
    return bytes((salt + i) % 251 for i in range(min(length, 251))) * (length // 251 + 1)


LENGTHS = st.one_of(
    st.integers(1, 40),
    st.sampled_from((CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 7)),
    st.integers(1, 300_000),
)
MESSAGES = st.lists(st.tuples(st.sampled_from(Lane), LENGTHS), max_size=6)
CUTS = st.lists(st.one_of(st.integers(1, 12), st.integers(1, 200_000)), min_size=1, max_size=6)


def test_the_bytes_on_the_wire() -> None:
    outbox = Outbox(10_000)
    outbox.put(Lane.BULK, b"abc")
    outbox.put(Lane.CONTROL, b"de")
    assert (
        drained(outbox)
        == bytes.fromhex("00 00000002 00000002") + b"de" + bytes.fromhex("01 00000003 00000003") + b"abc"
    )
    assert bytes.fromhex("02 00000000 00000000") == PING
    assert goodbye("so long") == bytes.fromhex("03 00000007 00000007") + b"so long"


@settings(max_examples=60, deadline=None)
@given(MESSAGES, CUTS)
def test_messages_come_out_in_the_order_of_their_lane(messages: list[tuple[Lane, int]], cuts: list[int]) -> None:
    sent = [(lane, body(length, i)[:length]) for i, (lane, length) in enumerate(messages)]
    outbox = Outbox(10_000_000)
    for lane, message in sent:
        assert outbox.put(lane, message)
    stream = drained(outbox)
    assert outbox.waiting_bytes == 0
    if len(stream) > 100_000:
        cuts = [max(cut, 1000) for cut in cuts]  # else it takes long
    got = feed(assembler(), stream, cuts)
    for lane in Lane:
        assert [bytes(message) for kind, message in got if kind is ChunkKind(lane)] == [
            m for where, m in sent if where is lane
        ]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 300_000), min_size=1, max_size=4), CUTS)
def test_control_overtakes_between_chunks(lengths: list[int], cuts: list[int]) -> None:
    """A control message that comes while a bulk message is half sent arrives first, and the bulk is not disturbed."""
    outbox = Outbox(20_000_000)
    bulk = body(4_000_000, 3)[:4_000_000]
    outbox.put(Lane.BULK, bulk)
    stream = b""
    for i, length in enumerate(lengths):
        for _ in range(2):
            header, chunk = outbox.next_chunk() or pytest.fail("nothing to send")
            stream += header + b"".join(chunk)
        outbox.put(Lane.CONTROL, body(length, i)[:length])
        while outbox.next_lane() is Lane.CONTROL:
            header, chunk = outbox.next_chunk() or pytest.fail("nothing to send")
            stream += header + b"".join(chunk) + PING
    stream += drained(outbox)
    got = [one for one in feed(assembler(), stream, [max(cut, 1000) for cut in cuts]) if one[0] is not ChunkKind.PING]
    assert [kind for kind, _ in got] == [ChunkKind.CONTROL] * len(lengths) + [ChunkKind.BULK]
    assert [len(message) for _, message in got[:-1]] == lengths
    assert bytes(got[-1][1]) == bulk


@given(
    lengths=st.lists(st.one_of(st.integers(0, 40), st.integers(0, 3 * CHUNK_BYTES)), min_size=1, max_size=4),
    more=LENGTHS,
)
def test_a_message_in_pieces_travels_like_one_in_one_piece(lengths: list[int], more: int) -> None:
    """Byte for byte, and half of it can be dropped: the receiver never learns how it lay in the sender's memory."""
    pieces = tuple(body(length, i)[:length] for i, length in enumerate(lengths))
    in_pieces, whole = Outbox(20_000_000), Outbox(20_000_000)
    for outbox, message in ((in_pieces, pieces), (whole, b"".join(pieces))):
        assert outbox.put(Lane.BULK, message)
        assert outbox.put(Lane.BULK, body(more, 7)[:more])
    assert in_pieces.waiting_bytes == whole.waiting_bytes
    first, same = in_pieces.next_chunk(), whole.next_chunk()
    assert first is not None
    assert same is not None
    assert (first[0], b"".join(first[1])) == (same[0], b"".join(same[1]))
    assert in_pieces.waiting_bytes == whole.waiting_bytes
    assert drained(in_pieces) == drained(whole)
    assert in_pieces.waiting_bytes == whole.waiting_bytes == 0


@pytest.mark.parametrize("numbers", [1, 1000, 2**18 + 3, 3 * 2**18 + 1])
@pytest.mark.parametrize("before", [1, 2, 3, 4, 77, 78, 79])
def test_numbers_at_the_end_of_a_bulk_message_are_aligned(numbers: int, before: int) -> None:
    """Whatever stands before them, and however often the message grew: nobody has to copy them to compute with them."""
    sent_D = np.arange(numbers, dtype=np.float32)
    outbox = Outbox(20_000_000)
    outbox.put(Lane.BULK, (bytes(before), sent_D.data.cast("B")))
    ((_, message),) = feed(assembler(), drained(outbox))
    got_D = np.frombuffer(message[before:], np.float32)
    assert got_D.flags.aligned
    assert np.array_equal(got_D, sent_D)


def test_a_queue_has_a_bound_in_bytes_and_dropping_frees_it() -> None:
    outbox = Outbox(2 * CHUNK_BYTES + 2 * MESSAGE_OVERHEAD)
    assert outbox.put(Lane.BULK, bytes(2 * CHUNK_BYTES))
    assert outbox.put(Lane.CONTROL, b"") is True
    assert outbox.put(Lane.CONTROL, b"") is False  # even nothing costs something
    assert outbox.next_chunk() is not None  # the empty one
    assert outbox.next_chunk() is not None  # half of the bulk
    outbox.drop(Lane.BULK)
    assert outbox.waiting_bytes == 0
    assert outbox.next_lane() is None


def test_control_comes_as_bytes_and_bulk_as_memory_of_its_own() -> None:
    outbox = Outbox(10_000)
    outbox.put(Lane.CONTROL, memoryview(b"abc"))
    outbox.put(Lane.BULK, bytearray(b"def"))
    (_, control), (_, bulk) = feed(assembler(), drained(outbox))
    assert (type(control), control) == (bytes, b"abc")
    assert (type(bulk), bulk) == (memoryview, b"def")


MALFORMED = {
    "unknown kind": HEADER.pack(4, 1, 1),
    "the highest kind": HEADER.pack(255, 1, 1),
    "too long for control": HEADER.pack(ChunkKind.CONTROL, MOST_CONTROL + 1, 1),
    "too long for bulk": HEADER.pack(ChunkKind.BULK, 2**32 - 1, LARGEST_CHUNK_BYTES),
    "too long a goodbye": HEADER.pack(ChunkKind.GOODBYE, 201, 201),
    "empty message": HEADER.pack(ChunkKind.CONTROL, 0, 0),
    "empty chunk": HEADER.pack(ChunkKind.BULK, 5, 0),
    "more than announced": HEADER.pack(ChunkKind.CONTROL, 5, 6),
    "too large a chunk": HEADER.pack(ChunkKind.BULK, MOST_BULK, LARGEST_CHUNK_BYTES + 1),
    "too small a chunk": HEADER.pack(ChunkKind.BULK, MOST_BULK, SMALLEST_CHUNK_BYTES - 1),
    "ping with a total": HEADER.pack(ChunkKind.PING, 1, 0),
    "ping with a body": HEADER.pack(ChunkKind.PING, 0, 1),
    "another total half way": HEADER.pack(ChunkKind.BULK, 50_000, 20_000)
    + bytes(20_000)
    + HEADER.pack(ChunkKind.BULK, 50_001, 30_001),
    "past the end": HEADER.pack(ChunkKind.BULK, 50_000, 20_000)
    + bytes(20_000)
    + HEADER.pack(ChunkKind.BULK, 50_000, 30_001),
}


@pytest.mark.parametrize("stream", MALFORMED.values(), ids=list(MALFORMED))
@pytest.mark.parametrize("cut", [1, 7, 100_000])
def test_a_malformed_stream_is_refused(stream: bytes, cut: int) -> None:
    with pytest.raises(MalformedError):
        feed(assembler(), stream, [cut])


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=9, max_size=300), CUTS)
def test_any_bytes_give_messages_or_a_refusal(stream: bytes, cuts: list[int]) -> None:
    got: list[tuple[ChunkKind, Received]] = []
    with suppress(MalformedError):
        got = feed(assembler(), stream, cuts)
    assert sum(len(message) for _, message in got) <= len(stream)


def taken(inbox: Assembler) -> int:
    return sum(len(message.data) for message in inbox._under_way.values())


def test_an_announcement_costs_its_sender_more_than_us() -> None:
    """The attack: announce 1 GB on every connection, send one byte, and wait."""
    gigabyte = 2**30
    inbox = Assembler(MOST_CONTROL)
    inbox.allow(MOST_CONTROL, gigabyte)
    feed(inbox, HEADER.pack(ChunkKind.BULK, gigabyte, LARGEST_CHUNK_BYTES) + b"x")
    assert taken(inbox) <= 2**20
    sent = 1
    feed(inbox, bytes(LARGEST_CHUNK_BYTES - 1))
    for _ in range(20):
        feed(inbox, HEADER.pack(ChunkKind.BULK, gigabyte, LARGEST_CHUNK_BYTES) + bytes(LARGEST_CHUNK_BYTES))
        sent += LARGEST_CHUNK_BYTES
        assert taken(inbox) <= max(2**20, 8 * (sent + LARGEST_CHUNK_BYTES))
    assert inbox.assembling


def test_growing_works_while_somebody_still_holds_a_view() -> None:
    inbox = assembler()
    message = body(4_000_000, 1)[:4_000_000]
    outbox = Outbox(5_000_000)
    outbox.put(Lane.BULK, message)
    stream, at, views, done = drained(outbox), 0, [], []
    while at < len(stream):
        views.append(inbox.buffer())
        size = min(len(views[-1]), len(stream) - at)
        views[-1][:size] = stream[at : at + size]
        done += inbox.filled(size)
        at += size
    assert [bytes(got) for _, got in done] == [message]


def test_a_large_message_is_read_in_place() -> None:
    inbox = assembler()
    feed(inbox, HEADER.pack(ChunkKind.BULK, 200_000, 200_000) + bytes(1000))
    space = inbox.buffer()
    assert space.obj is inbox._under_way[ChunkKind.BULK].data.obj
    assert len(space) == 199_000


def test_reasons_are_cut_and_made_safe_to_print() -> None:
    ((kind, reason),) = feed(assembler(), goodbye("\x1b[31mdanger\n" + "é" * 500))
    assert kind is ChunkKind.GOODBYE
    assert len(reason) == 200
    assert reason_of(reason).isprintable()
    assert feed(assembler(), goodbye("")) == [(ChunkKind.GOODBYE, b"closed")]
