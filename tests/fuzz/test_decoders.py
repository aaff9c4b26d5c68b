"""[M3] Any bytes at all: every decoder accepts or refuses, and takes no more memory than the bytes are worth."""

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
import torch
from hypothesis import given, settings

from tests.fuzz.drawn import drawn
from tests.fuzz.evidence import forger, safetensors, tensor
from tests.fuzz.evidence_inputs import feed_record
from tests.fuzz.message_inputs import FRAMES, PHASES, feed_message, feed_packet
from tests.fuzz.mutate import ATOMS, HEADERS
from tests.fuzz.sessions import MOST_BYTES
from tests.fuzz.targets import BY_NAME, TARGETS, Target
from troth.crypto import Digest, Slot
from troth.evidence.file_format import RecomputeError, from_text
from troth.evidence.recompute import Recomputed, recompute
from troth.evidence.verify import UnprovedError, verify_ban
from troth.protocol.core.records import decode_record
from troth.protocol.wire.frames import (
    BlobSent,
    Packet,
    PartSent,
    PartShown,
    decode_packet,
    encode_in_pieces,
    encode_packet,
)
from troth.protocol.wire.messages import Malformed, Phase
from troth.training.work import Training, training_of

SLOW = (
    "verify.verify_ban",
    "bans.from_text",
    "verify_model.verify_model",
    "comeback.follow",
    "Announcement",
    "BroadcastChannel",
    "BroadcastChannel/looks-on",
)
quick = pytest.mark.parametrize(
    "target", [target for target in TARGETS if target.name not in SLOW], ids=lambda t: t.name
)
slow = pytest.mark.parametrize("target", [BY_NAME[name] for name in SLOW], ids=lambda t: t.name)
seeded = st.randoms(use_true_random=True)  # a seed is drawn, and its numbers are as good as any


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_undamaged_inputs_are_accepted(target: Target) -> None:
    """Else nothing below would reach what lies behind the first check."""
    for seed in range(10):
        fed = target.feed(target.fresh(Random(seed)))
        assert fed.accepted == fed.inputs > 0


@pytest.mark.long
@quick
@settings(max_examples=50, deadline=None)
@given(random=seeded)
def test_damage_is_refused_or_harmless(target: Target, random: Random) -> None:
    for _ in range(10):
        target.feed(target.hostile(random))


@slow
@settings(max_examples=25, deadline=None)
@given(random=seeded)
def test_lies_that_are_well_signed_are_refused_or_harmless(target: Target, random: Random) -> None:
    target.feed(target.hostile(random))


@pytest.mark.parametrize("target", [t for t in TARGETS if t.inputs == 1], ids=lambda t: t.name)
@settings(max_examples=50, deadline=None)
@given(raw=st.binary(max_size=300))
def test_noise_is_refused_or_harmless(target: Target, raw: bytes) -> None:
    target.feed(raw)


@pytest.mark.parametrize("kind", FRAMES)
@settings(max_examples=30, deadline=None)
@given(random=seeded, phase=st.sampled_from(Phase), attempt=st.integers(0, 2**16 - 1), step=st.integers(0, 2**62 - 1))
def test_what_is_encoded_is_decoded(kind: type[Any], random: Random, phase: Phase, attempt: int, step: int) -> None:
    """Every frame, for every slot, comes out as it went in."""
    slot = Slot(Digest(random.randbytes(32)), step, phase, attempt, random.getrandbits(32))
    packet = Packet(slot, drawn(kind, random))
    assert decode_packet(encode_packet(packet), MOST_BYTES) == packet
    assert b"".join(encode_in_pieces(packet)) == encode_packet(packet)


@pytest.mark.parametrize("length", [0, 1, 255, 256, 65535, 65536, 70000])
def test_a_blob_is_sent_from_where_it_lies(length: int) -> None:
    """In every length of MessagePack's headers, the pieces are the bytes of the whole, and the blob is not copied."""
    blob = memoryview(bytes(length))
    for frame in (PartSent(3, (bytes(32),), blob), PartShown(3, bytes(32), (), blob), BlobSent(blob)):
        packet = Packet(HERE, frame)
        head, last = encode_in_pieces(packet)
        assert last is blob
        assert bytes(head) + bytes(last) == encode_packet(packet)
        assert packet.size == len(encode_packet(packet))


# Packets that are wrong in one thing

HERE = Slot(Digest(bytes(32)), 1, Phase.COMMIT)
GOOD = msgspec.msgpack.decode(encode_packet(Packet(HERE, PartSent(3, (bytes(32),), memoryview(bytes(8))))))


def changed(value: Any, *path: int) -> bytes:
    """The good packet as a tree, with this value in that place."""
    tree = msgspec.msgpack.decode(msgspec.msgpack.encode(GOOD))
    where = tree
    for key in path[:-1]:
        where = where[key]
    where[path[-1]] = value
    return msgspec.msgpack.encode(tree)


@contextmanager
def memory_below(most: int) -> Iterator[None]:
    """Peak of the memory that is allocated inside."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def refused(raw: bytes) -> str:
    result = decode_packet(raw, MOST_BYTES)
    assert isinstance(result, Malformed), "this is no packet"
    return result.reason


@pytest.mark.parametrize(
    ("path", "right"),
    [((0, 0), bytes(32)), ((0, 1), 1), ((0, 2), 1), ((0, 3), 0), ((0, 4), 0), ((1, 1), 3), ((1, 2), []), ((1, 3), b"")],
)
def test_a_value_of_the_wrong_kind_is_refused(path: tuple[int, int], right: object) -> None:
    """In every place of a packet: bool, null, fractions, NaN, infinity, text, maps, extensions where they do not belong."""
    assert feed_packet(changed(right, *path)).accepted
    for atom in ATOMS:
        if type(atom) is not type(right):
            refused(changed(atom, *path))


@pytest.mark.parametrize("path", [(0, 1), (0, 2), (0, 3), (0, 4), (1, 1)])
@pytest.mark.parametrize("number", [-1, 2**62, 2**63, 2**64 - 1, -(2**63)])
def test_a_number_that_is_too_large_is_refused(path: tuple[int, int], number: int) -> None:
    refused(changed(number, *path))


@pytest.mark.parametrize(
    "tag", [b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"Val\x80e", b"", b"value", b"Frame", b"x" * 200]
)
def test_a_frame_of_no_known_kind_is_refused(tag: bytes) -> None:
    """Its name may be no text at all: what says so must not be an exception."""
    good = encode_packet(Packet(HERE, PartSent(3, (), memoryview(b""))))
    name = b"\xa8PartSent"
    assert good.count(name) == 1
    refused(good.replace(name, b"\xd9" + bytes([len(tag)]) + tag))


@pytest.mark.parametrize(
    "level", [b"\x91", b"\x81\xc0", b"\x81\x91", b"\x92\xc0", b"\xdc\x00\x01", b"\xdf\x00\x00\x00\x01"]
)
@pytest.mark.parametrize("before", [0, 1, 2, 40, 60])
def test_deep_nests_are_refused(level: bytes, before: int) -> None:
    """A hundred thousand levels, at the start and further in; the stack is not touched."""
    raw = encode_packet(Packet(HERE, PartSent(3, (bytes(32),), memoryview(bytes(8)))))[:before] + level * 100_000
    refused(raw)
    for phase in PHASES:
        assert not feed_message(phase, raw[:150]).accepted
    assert not feed_record(raw).accepted


def test_lengths_that_are_announced_and_not_sent_take_no_memory() -> None:
    """Lengths of up to 4 GiB in a few bytes, in every place of a packet, a message and a record."""
    good = encode_packet(Packet(HERE, PartSent(3, (bytes(32),), memoryview(bytes(8)))))
    with memory_below(1 << 20):
        for header in HEADERS:
            for cut in range(len(good)):
                decode_packet(good[:cut] + header, MOST_BYTES)
            for phase in PHASES:
                feed_message(phase, b"\x91" + header)
                feed_message(phase, header)
            feed_record(b"\x9f" + header)
            feed_record(b"\x92\x01" + header)


def test_a_packet_takes_a_few_times_its_bytes() -> None:
    """The largest crowd of small things that a packet may hold."""
    path = tuple(bytes([k]) * 32 for k in range(32))
    chain = {k.to_bytes(32, "big"): bytes(64) for k in range(1024)}
    frame = ["SyncShown", [[b"", chain]] * 9]
    raw = msgspec.msgpack.encode([GOOD[0], frame])
    with memory_below(6 * len(raw)):
        assert feed_packet(raw).accepted
    assert feed_packet(changed(list(path), 1, 2)).accepted
    assert not feed_packet(changed([*path, bytes(32)], 1, 2)).accepted


def test_packets_that_are_too_long_are_not_even_parsed() -> None:
    raw = encode_packet(Packet(HERE, PartSent(3, (), memoryview(bytes(1000)))))
    assert isinstance(decode_packet(raw, len(raw)), Packet)
    assert isinstance(decode_packet(raw, len(raw) - 1), Malformed)


# Evidence, records and states

DEEP = "[" * 100_000
REFUSED_TEXTS = [
    "",
    "{}",
    "[]",
    "null",
    "NaN",
    "1e999",
    "9" * 5000,
    '"\\ud800"',
    "\ud800",
    "\x00",
    DEEP,
    '{"":' * 100_000,
    "\ufeff{}",
]


@pytest.mark.parametrize("text", REFUSED_TEXTS, ids=lambda text: text[:8].encode("unicode_escape").decode())
def test_a_text_that_is_no_evidence_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a ban evidence file"):
        from_text(text)
    with pytest.raises(UnprovedError, match="not a ban evidence file"):
        verify_ban(text)


@pytest.mark.parametrize("raw", [b"", b"\xc0", b"\x90", b"\xdd\xff\xff\xff\xff", b"\x93\x01\x02\x03", b"\x91" * 9999])
def test_bytes_that_are_no_record_are_refused(raw: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_record(raw)


@pytest.mark.parametrize(
    "kind", ["F32", "F64", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I16", "I64", "U64", "BOOL", "C64"]
)
def test_a_state_of_an_odd_kind_is_refused_or_has_a_digest(kind: str) -> None:
    """[B2] A member that comes back asks one peer for the state; that one may be a liar."""
    for shape, size in (([2], 4), ([1], 4), ([], 4), ([0], 0), ([0, 2**20], 0), ([2**62, 0], 0), ([2**63, 0], 0)):
        header = json.dumps({"parameters": tensor(kind, shape, size)}).encode()
        BY_NAME["work.unpack"].feed(safetensors(header, bytes(size)))


TRAINED = {"task": "quadratic:dimension=60", "device": "cpu", "one_by_one": False}


@pytest.mark.parametrize(
    "description",
    [
        *(
            "",
            "null",
            "{}",
            "\x00",
            json.dumps({**TRAINED, "device": "tpu"}),
            json.dumps({**TRAINED, "task": "evil.py"}),
        ),
        *(
            json.dumps({**TRAINED, "task": f"quadratic:dimension={size}"})
            for size in ("60" * 3000, "-1", "0", "1e9", "nan")
        ),
        json.dumps(TRAINED)[:-1] + ', "more": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
    ids=range(12),
)
def test_a_run_that_is_described_badly_is_not_recomputed(description: str) -> None:
    """[E1] Anybody can found a run, describe it, ban somebody and hand the file to you."""
    proof, state = forger().described(description)
    with pytest.raises(RecomputeError):
        recompute(proof, state)


def test_a_state_of_odd_tensors_is_not_recomputed() -> None:
    """[E1] The file beside the evidence; and without the odd one it is recomputed."""
    proof, state = forger().described(json.dumps(TRAINED))
    assert recompute(proof, state) in Recomputed
    named = {"parameters": state.parameters_D, "more": torch.zeros(2)}
    assert isinstance(training_of(named), Training)
    for odd in (torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64)):
        assert isinstance(training_of({**named, "more": odd}), Malformed)
