"""Inputs of the decoders of packets, messages and reports, and what these may do with them."""

import struct
from random import Random
from typing import Any, get_args

import msgspec
import numpy as np
import torch

from tests.fuzz.drawn import drawn
from tests.fuzz.mutate import damaged
from tests.fuzz.sessions import MOST_BYTES, Fed
from troth.clip import block_kernels
from troth.clip.blocks import INT8, INT16
from troth.clip.exact import ordinary
from troth.crypto import Digest, Slot
from troth.protocol.step.deliveries import bits_of
from troth.protocol.wire.frames import Frame, Packet, decode_packet, encode_packet
from troth.protocol.wire.messages import (
    Accuse,
    Center,
    Clip,
    Close,
    Commit,
    Confirm,
    Malformed,
    Message,
    Phase,
    Report,
    ReportNumbers,
    Reveal,
    Vote,
)
from troth.protocol.wire.phases import decode, encode

PHASES: dict[Phase, type[Message]] = {
    Phase.COMMIT: Commit,
    Phase.CLIP: Clip,
    Phase.REVEAL: Reveal,
    Phase.CONFIRM: Confirm,
    Phase.REPORT: Report,
    Phase.ACCUSE: Accuse,
    Phase.VOTE: Vote,
    Phase.CLOSE: Close,
}


FRAMES: tuple[type[Any], ...] = get_args(Frame)
CODES = INT8, INT16


def one_input(accepted: bool) -> Fed:
    return Fed(1, int(accepted))


def packet_bytes(random: Random) -> bytes:
    slot = Slot(Digest(random.randbytes(32)), random.choice((0, 7, 2**62 - 1)), random.randint(1, max(Phase)))
    return encode_packet(Packet(slot, drawn(random.choice(FRAMES), random)))


def feed_packet(raw: bytes) -> Fed:
    packet = decode_packet(raw, MOST_BYTES)
    if isinstance(packet, Malformed):
        return one_input(False)
    assert isinstance(packet.frame, FRAMES)
    assert len(raw) <= MOST_BYTES
    assert decode_packet(encode_packet(packet), MOST_BYTES) == packet, "it is another packet when it is sent on"
    return one_input(True)


def message_bytes(phase: Phase, random: Random) -> bytes:
    """A drawn message; its numbers are finite, as types cannot say."""
    message = drawn(PHASES[phase], random)
    match message:
        case Clip():
            centers = (Center(one.part, one.digest, random.uniform(0, 9), random.random()) for one in message.centers)
            message = msgspec.structs.replace(message, centers=tuple(centers))
        case Report():
            message = msgspec.structs.replace(
                message, numbers=struct.pack("<6d", *(random.uniform(-9, 9) for _ in range(6)))
            )
        case Commit():
            message = msgspec.structs.replace(message, length=None if message.root is None else random.uniform(0, 9))
    return encode(message)


def feed_message(phase: Phase, raw: bytes) -> Fed:
    message = decode(phase, raw)
    if isinstance(message, Malformed):
        return one_input(False)
    assert type(message) is PHASES[phase]
    assert decode(phase, encode(message)) == message
    match message:
        case Clip():
            numbers = [number for center in message.centers for number in (center.norm, center.rounding)]
        case Commit():
            assert (message.root is None) == (message.length is None)
            numbers = [message.length or 0.0]
        case Report():
            numbers = [number for (number,) in struct.iter_unpack("<d", message.numbers)]
        case _:
            numbers = []
    assert all(abs(number) <= 2.0**400 for number in numbers), "no honest number comes near"
    return one_input(True)


def report_bytes(random: Random) -> bytes:
    parts, projections = random.randint(1, 5), random.randint(1, 5)
    rows = (
        struct.pack("<2d", random.random(), random.random()) + random.randbytes(8 * projections) for _ in range(parts)
    )
    return bytes([parts, projections]) + b"".join(rows)


def feed_report(raw: bytes) -> Fed:
    """The first two bytes say for how many parts and projections."""
    parts, projections = (raw[0], raw[1]) if len(raw) > 1 else (1, 1)
    numbers = ReportNumbers.unpack(raw[2:], parts, projections)
    if isinstance(numbers, Malformed):
        return one_input(False)
    assert numbers.lengths_P.shape == numbers.norms_P.shape == (parts,)
    assert not (np.concatenate([numbers.lengths_P, numbers.norms_P]) < 0).any()
    assert numbers.projections_PK.shape == (parts, projections)
    assert numbers.pack() == raw[2:]
    return one_input(True)


def feed_bits(raw: bytes) -> Fed:
    count = 1 + (raw[0] if raw else 0)
    (bits,) = bits_of([raw[1:]], count)
    assert bits.shape == (count,)
    assert set(bits.tolist()) <= {0, 1}
    return one_input(True)


def code_bytes(random: Random) -> bytes:
    """The first byte says in which form: even ones int8, odd ones int16."""
    form = random.randrange(2)
    numbers_D = np.array([random.gauss(0, 1) for _ in range(random.choice((0, 1, 254, 255, 256, 600)))], np.float32)
    return bytes([form]) + bytes(CODES[form].pack(torch.from_numpy(CODES[form].rounded(numbers_D))))


def hostile_code_bytes(random: Random) -> bytes:
    """Damaged, or random codes behind an exponent, or noise."""
    raw = code_bytes(random)
    match random.randrange(3):
        case 0:
            return damaged(raw, random)
        case 1:
            return raw[:1] + bytes([random.choice((0, 1, 120, 237, 238, 239, 246, 247, 255))]) + raw[2:]
        case _:
            return raw[:1] + random.randbytes(len(raw) - 1)


def feed_codes(raw: bytes) -> Fed:
    """Loops, which look at no bounds, take and refuse the same."""
    form, body = CODES[raw[0] % 2 if raw else 0], memoryview(raw)[1:]
    numbers_D, right_length = form.unpack(body), form.length(form.count(len(body))) == len(body)
    found_D = block_kernels.unpack(form, np.frombuffer(body, np.uint8)) if right_length else None
    if numbers_D is None:
        assert found_D is None
        return one_input(False)
    assert found_D is not None
    assert np.array_equal(found_D, numbers_D)
    assert ordinary(numbers_D)
    assert form.pack(torch.from_numpy(numbers_D)) == raw[1:], "there are two forms of one vector"
    return one_input(True)
