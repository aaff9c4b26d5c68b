"""What is fuzzed: for every decoder its inputs, fresh and hostile, and what it may do with them."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, get_args

import msgspec
import numpy as np
import torch

from tests.fuzz.drawn import drawn
from tests.fuzz.evidence import forger
from tests.fuzz.mutate import bent, damaged
from tests.fuzz.sessions import (
    IDS,
    MOST_BYTES,
    TOOLS,
    Fed,
    feed_announcement,
    feed_channel,
    feed_onlooker,
    fresh_session,
    hostile_session,
    session_bytes,
    session_of,
)
from troth.crypto import Digest, PeerId, Signature, Slot, valid_peer, verify
from troth.evidence.form import BanFile, from_text, to_text
from troth.evidence.verify import UnprovedError, verify_ban
from troth.protocol.core.parts import ProvenPart, commit_parts, opens, part_bounds, rows_of
from troth.protocol.core.records import StepRecord, decode_record, encode_record
from troth.protocol.core.state import State
from troth.protocol.recovery.member import follow
from troth.protocol.step.deliveries import bits_of
from troth.protocol.wire.frames import CertifiedRecord, Frame, Packet, decode_packet, encode_packet
from troth.protocol.wire.messages import (
    Accuse,
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
    decode,
    encode,
)

PHASES: dict[Phase, type[Message]] = {
    Phase.COMMIT: Commit,
    Phase.CLIP: Clip,
    Phase.REVEAL: Reveal,
    Phase.CONFIRM: Confirm,
    Phase.REPORT: Report,
    Phase.ACCUSE: Accuse,
    Phase.VOTE: Vote,
    Phase.RECORD: Close,
}
FRAMES: tuple[type[Any], ...] = get_args(Frame)
CHANNEL_PACKETS, ANNOUNCEMENT_PACKETS = 60, 16  # in one session


@dataclass(frozen=True)
class Target:
    """One decoder. `feed` raises if it does anything but accept or refuse, or accepts what it must not."""

    name: str
    share: int  # of a thousand inputs
    fresh: Callable[[Random], bytes]  # what an honest peer may send
    hostile: Callable[[Random], bytes]
    feed: Callable[[bytes], Fed]
    inputs: int = 1  # in one draw


def _fed(accepted: bool) -> Fed:
    return Fed(1, int(accepted))


def _worse(fresh: Callable[[Random], bytes], random: Random) -> bytes:
    """Damaged bytes, or an odd tree, or both, or noise."""
    match random.randrange(10):
        case 0:
            return random.randbytes(random.choice((0, 1, 2, 8, 40, 300)))
        case 1 | 2 | 3 | 4:
            return damaged(fresh(random), random, (fresh(random),))
        case 5:
            return damaged(bent(fresh(random), random), random)
        case _:
            return bent(fresh(random), random)


# Packets


def packet_bytes(random: Random) -> bytes:
    slot = Slot(Digest(random.randbytes(32)), random.choice((0, 7, 2**62 - 1)), random.randint(1, max(Phase)))
    return encode_packet(Packet(slot, drawn(random.choice(FRAMES), random)))


def feed_packet(raw: bytes) -> Fed:
    packet = decode_packet(raw, MOST_BYTES)
    if isinstance(packet, Malformed):
        return _fed(False)
    assert isinstance(packet.frame, FRAMES)
    assert len(raw) <= MOST_BYTES
    assert decode_packet(encode_packet(packet), MOST_BYTES) == packet, "it is another packet when it is sent on"
    return _fed(True)


# Messages


def message_bytes(phase: Phase, random: Random) -> bytes:
    """A drawn message; its numbers are finite, as types cannot say."""
    message = drawn(PHASES[phase], random)
    match message:
        case Clip():
            centers = (msgspec.structs.replace(center, norm=random.uniform(0, 9)) for center in message.centers)
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
        return _fed(False)
    assert type(message) is PHASES[phase]
    assert decode(phase, encode(message)) == message
    match message:
        case Clip():
            numbers = [center.norm for center in message.centers]
        case Commit():
            assert (message.root is None) == (message.length is None)
            numbers = [message.length or 0.0]
        case Report():
            numbers = [number for (number,) in struct.iter_unpack("<d", message.numbers)]
        case _:
            numbers = []
    assert all(abs(number) <= 2.0**400 for number in numbers), "no honest number comes near"
    return _fed(True)


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
        return _fed(False)
    assert numbers.lengths_P.shape == numbers.norms_P.shape == (parts,)
    assert not (np.concatenate([numbers.lengths_P, numbers.norms_P]) < 0).any()
    assert numbers.projections_PK.shape == (parts, projections)
    assert numbers.pack() == raw[2:]
    return _fed(True)


def feed_bits(raw: bytes) -> Fed:
    count = 1 + (raw[0] if raw else 0)
    (bits,) = bits_of([raw[1:]], count)
    assert bits.shape == (count,)
    assert set(bits.tolist()) <= {0, 1}
    return _fed(True)


# Records and evidence


def record_bytes(random: Random) -> bytes:
    return encode_record(drawn(StepRecord, random))


def feed_record(raw: bytes) -> Fed:
    try:
        record = decode_record(raw)
    except msgspec.MsgspecError:
        return _fed(False)
    assert set(record.banned) <= record.leaving
    written = encode_record(record)  # compared as bytes, since not every number equals itself
    assert encode_record(decode_record(written)) == written
    return _fed(True)


def text_of(raw: bytes) -> str:
    """Any bytes as some text, and the bytes of a text as that text."""
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def feed_text(raw: bytes) -> Fed:
    text = text_of(raw)
    try:
        file = from_text(text)
    except ValueError:
        return _fed(False)
    assert isinstance(file, BanFile)
    assert to_text(file) == text, "a file has one form"
    return _fed(True)


def feed_evidence(raw: bytes) -> Fed:
    text = text_of(raw)
    try:
        proof = verify_ban(text)
    except UnprovedError:
        return _fed(False)
    assert proof.banned.hex() == from_text(text).banned
    assert proof.banned.hex() in proof.sentence()
    return _fed(True)


def feed_links(raw: bytes) -> Fed:
    """What somebody who comes back is shown."""
    try:
        certified = msgspec.msgpack.decode(raw, type=tuple[CertifiedRecord, ...])
    except msgspec.MsgspecError:
        return _fed(False)  # it would not have come through as a packet
    run, model = forger().run, Digest(decode_record(forger().certified[0].record).state_before)
    followed = follow(run, State.first(run, None), model, certified, TOOLS)
    if followed is None:
        return _fed(False)
    assert len(followed.records) == len(certified)
    assert followed.roster.members == tuple(sorted(set(followed.roster.members)))
    return _fed(True)


def feed_state(raw: bytes) -> Fed:
    """Its digest is asked for before anything else is known about it."""
    work = forger().work
    training = work.unpack(raw)
    if isinstance(training, Malformed):
        return _fed(False)
    assert len(work.digest(training)) == 32
    return _fed(True)


# Signatures and parts

_MESSAGE = b"message"
_SIGNED = {(one.peer, _MESSAGE, one.sign(_MESSAGE)) for one in IDS}
_BOUNDS = part_bounds(50, 7)
_COMMITTED = commit_parts(torch.arange(50, dtype=torch.float32), _BOUNDS, TOOLS)
_ODD = 2**255 - 19  # the field's prime
_ORDER = 2**252 + 27742317777372353535851937790883648493


def pieces(raw: bytes, count: int) -> list[bytes]:
    """Any bytes as so many pieces: two bytes of length before each but the last."""
    found = []
    for _ in range(count - 1):
        size = int.from_bytes(raw[:2], "big")
        found.append(raw[2 : 2 + size])
        raw = raw[2 + size :]
    return [*found, raw]


def joined(*parts: bytes) -> bytes:
    return b"".join((*(len(part).to_bytes(2, "big") + part for part in parts[:-1]), parts[-1]))


def signature_bytes(random: Random) -> bytes:
    return joined(*random.choice(sorted(_SIGNED)))


def hostile_signature_bytes(random: Random) -> bytes:
    peer, message, signature = random.choice(sorted(_SIGNED))
    match random.randrange(5):
        case 0:
            peer = PeerId(random.choice((odd_key(random), damaged(peer, random))))
        case 1:
            lenient = int.from_bytes(signature[32:], "little") + _ORDER  # the same number to those who do not look
            second = random.choice((odd_key(random), lenient.to_bytes(32, "little")))
            signature = Signature(random.choice((odd_key(random) + signature[32:], signature[:32] + second)))
        case 2:
            signature = Signature(damaged(signature, random))
        case 3:
            message = damaged(message, random)
        case _:
            return damaged(joined(peer, message, signature), random)
    return joined(peer, message, signature)


def feed_signature(raw: bytes) -> Fed:
    """Nobody but the key's owner can have made it, and there is but one signature: everything else is a forgery."""
    peer, message, signature = pieces(raw, 3)
    accepted = verify(PeerId(peer), message, signature)
    assert accepted is ((peer, message, signature) in _SIGNED)
    return _fed(accepted)


def odd_key(random: Random) -> bytes:
    """Numbers around the field's prime and zero, and noise."""
    number = random.choice((0, 1, 2, _ODD - 1, _ODD, _ODD + 1, 2**255 - 1, 2**255, 2**256 - 1, random.getrandbits(256)))
    return (number | random.choice((0, 1 << 255))).to_bytes(32, "little")


def key_bytes(random: Random) -> bytes:
    return random.choice(IDS).peer


def hostile_key_bytes(random: Random) -> bytes:
    return random.choice(
        (odd_key, lambda random: damaged(key_bytes(random), random), lambda random: random.randbytes(32))
    )(random)


def feed_key(raw: bytes) -> Fed:
    accepted = valid_peer(raw)
    assert accepted in (True, False)
    assert not accepted or (len(raw) == 32 and 1 < int.from_bytes(raw, "little") % 2**255 < _ODD - 1)
    return _fed(accepted)


def parcel_bytes(random: Random) -> bytes:
    """Which part, how long the pieces of the path are, the path, and the blob."""
    part = random.randrange(len(_BOUNDS) - 1)
    proven = _COMMITTED.proven_parts[part]
    return bytes([part, 32]) + joined(b"".join(proven.path), proven.blob)


def hostile_parcel_bytes(random: Random) -> bytes:
    """Damaged, or in the place of another, or with the steps of its path in disorder."""
    part, proven = random.randrange(len(_BOUNDS) - 1), random.choice(_COMMITTED.proven_parts)
    path, blob = list(proven.path), proven.blob
    match random.randrange(4):
        case 0:
            return damaged(parcel_bytes(random), random)
        case 1:
            random.shuffle(path)
        case 2:
            path[random.randrange(len(path)) :] = random.choice(_COMMITTED.proven_parts).path * random.choice((0, 1, 9))
        case _:
            blob = b"".join(
                random.choice((bytes(4), b"\0\0\x80\x7f", random.randbytes(4))) for _ in range(len(blob) // 4)
            )
    return bytes([part, 32]) + joined(b"".join(path), blob)


def feed_parcel(raw: bytes) -> Fed:
    """Whatever blob and path: only what was committed to opens the root."""
    part, size = (raw[0] % (len(_BOUNDS) - 1), max(1, raw[1])) if len(raw) > 1 else (0, 32)
    path, blob = pieces(raw[2:], 2)
    proven = ProvenPart(blob, tuple(Digest(path[at : at + size]) for at in range(0, len(path), size)))
    accepted = opens(proven, part, _BOUNDS, _COMMITTED.root, TOOLS)
    assert accepted is (proven == _COMMITTED.proven_parts[part])
    if len(blob) == 4 * (_BOUNDS[part + 1] - _BOUNDS[part]):
        assert torch.isfinite(rows_of([proven, _COMMITTED.proven_parts[part]])).all()
    return _fed(accepted)


TARGETS: tuple[Target, ...] = (
    Target("frames.decode_packet", 320, packet_bytes, partial(_worse, packet_bytes), feed_packet),
    *(
        Target(
            f"messages.decode/{phase.name}",
            40,
            partial(message_bytes, phase),
            partial(_worse, partial(message_bytes, phase)),
            partial(feed_message, phase),
        )
        for phase in PHASES
    ),
    Target("ReportNumbers.unpack", 20, report_bytes, lambda random: damaged(report_bytes(random), random), feed_report),
    Target(
        "delivered.bits_of",
        10,
        lambda random: random.randbytes(20),
        lambda random: random.randbytes(random.randrange(99)),
        feed_bits,
    ),
    Target("records.decode_record", 80, record_bytes, partial(_worse, record_bytes), feed_record),
    Target(
        "bans.from_text",
        40,
        lambda random: bytes_of(random.choice(forger().texts)),
        lambda random: bytes_of(forger().written(random)),
        feed_text,
    ),
    Target(
        "verify.verify_ban",
        20,
        lambda random: bytes_of(random.choice(forger().texts)),
        lambda random: bytes_of(forger().forged(random)),
        feed_evidence,
    ),
    Target(
        "comeback.follow",
        10,
        lambda random: msgspec.msgpack.encode(forger().certified[: random.randint(1, 4)]),
        lambda random: msgspec.msgpack.encode(forger().followed(random)),
        feed_links,
    ),
    Target("work.unpack", 20, lambda _: forger().state, lambda random: forger().state_bytes(random), feed_state),
    Target("crypto.verify", 40, signature_bytes, hostile_signature_bytes, feed_signature),
    Target("crypto.valid_peer", 20, key_bytes, hostile_key_bytes, feed_key),
    Target("parts.opens", 40, parcel_bytes, hostile_parcel_bytes, feed_parcel),
    Target(
        "Announcement",
        70,
        lambda random: session_bytes(fresh_session(random, ANNOUNCEMENT_PACKETS)),
        lambda random: session_bytes(hostile_session(random, ANNOUNCEMENT_PACKETS)),
        lambda raw: feed_announcement(session_of(raw)),
        ANNOUNCEMENT_PACKETS,
    ),
    Target(
        "AgreedChannel",
        70,
        lambda random: session_bytes(fresh_session(random, CHANNEL_PACKETS)),
        lambda random: session_bytes(hostile_session(random, CHANNEL_PACKETS)),
        lambda raw: feed_channel(session_of(raw)),
        CHANNEL_PACKETS,
    ),
    Target(
        "AgreedChannel/looks-on",
        30,
        lambda random: session_bytes(fresh_session(random, CHANNEL_PACKETS)),
        lambda random: session_bytes(hostile_session(random, CHANNEL_PACKETS, told=0.7)),
        lambda raw: feed_onlooker(session_of(raw)),
        CHANNEL_PACKETS,
    ),
)
BY_NAME = {target.name: target for target in TARGETS}
