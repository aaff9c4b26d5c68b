"""False frames and payloads, made from those that were to be sent.

Nothing here decides when to lie or to whom: `LyingLink` does.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from troth.crypto import Digest, Identity, PeerId, Slot, Stream, blob_digest, signed_bytes, tagged_hash
from troth.protocol.broadcast.announcement import chain_bytes, view_bytes
from troth.protocol.wire.frames import (
    BlobSent,
    Certificate,
    Chained,
    Decided,
    Frame,
    Packet,
    PartSent,
    PartShown,
    Ready,
    Relayed,
    RestartCertificate,
    Value,
    View,
    Waiting,
)
from troth.protocol.wire.messages import (
    Accuse,
    Clip,
    Close,
    Commit,
    Confirm,
    Envelope,
    Message,
    Phase,
    Report,
    Reveal,
    SignedRejoin,
    Vote,
)
from troth.protocol.wire.phases import encode

T = TypeVar("T")

Blob = PartSent | PartShown | BlobSent
_OVERSIZE = 400_000  # bytes of payloads and blobs; more than a message of most phases may have
_OVERSIZE_IN = {Phase.REPORT: 600_000, Phase.VOTE: 3_000_000}  # messages of these phases may be longer
_NUMBERS = (math.nan, math.inf, -math.inf, 1e308, 2.0**400)  # the last is the largest that is allowed
_LONGEST_PATH = 32
_EARLY_FRAMES, _EARLY_BYTES = 8, 1 << 20  # of each kind


def pick(draw: Stream, options: Sequence[T]) -> T:
    return options[int(draw.integers(len(options), 1)[0])]


# Payloads


def announcing(identity: Identity, slot: Slot, payload: bytes) -> Value:
    """A value with any payload, validly signed."""
    digest = blob_digest(payload)
    return Value(Envelope(payload, identity.sign(signed_bytes(slot, identity.peer, digest))))


def another(message: Message) -> Message:
    """A well-formed message of the same phase that says something else."""
    match message:
        case Commit():
            return msgspec.structs.replace(message, coin_a=bytes(32))
        case Clip():
            return msgspec.structs.replace(message, centers=message.centers[:-1])
        case Reveal():
            return msgspec.structs.replace(message, coin=bytes(32))
        case Confirm():
            return Confirm(bytes(byte ^ 1 for byte in message.held))
        case Report():
            return msgspec.structs.replace(message, numbers=bytes(len(message.numbers)) or bytes(8))
        case Accuse():
            return msgspec.structs.replace(message, coin=bytes(32))
        case Vote():
            return Vote(message.ballots[:-1])
        case Close():
            return Close(bytes(64))


def malformed(phase: Phase, payload: bytes, draw: Stream) -> bytes:
    """No message of this phase: noise, a message of another phase, half of one, nothing, or arrays within arrays."""
    elsewhere = Vote(()) if phase == Phase.REVEAL else Reveal(bytes(32), b"")
    noise = draw.words(8).tobytes()
    return pick(draw, (noise, encode(elsewhere), payload[: len(payload) // 2], b"", b"\x91" * 100))


def oversized(phase: Phase, payload: bytes) -> bytes:
    return payload.ljust(_OVERSIZE_IN.get(phase, _OVERSIZE), b"\0")


def not_finite(message: Message, draw: Stream) -> Message:
    """The message with numbers, where it has any, that are not finite or too large to be squared."""
    number = pick(draw, _NUMBERS)
    match message:
        case Commit() if message.length is not None:
            return msgspec.structs.replace(message, length=number)
        case Clip():
            return msgspec.structs.replace(
                message, centers=tuple(msgspec.structs.replace(center, norm=number) for center in message.centers)
            )
        case Report():
            return msgspec.structs.replace(message, numbers=np.full(len(message.numbers) // 8, number, "<f8").tobytes())
        case _:
            return message


def false_rejoin(message: Commit, gone: PeerId, draw: Stream) -> Commit:
    """A Commit with a request to rejoin for a member that is gone, under a key that is none of its own."""
    key = Identity.from_secret(draw.words(4).tobytes()).peer
    rejoin = SignedRejoin(gone, key, draw.words(8).tobytes(), draw.words(8).tobytes())
    return msgspec.structs.replace(message, rejoins=(*message.rejoins, rejoin))


def false_signature(message: Commit, identity: Identity, slot: Slot) -> Commit:
    """A Commit that signs another record than the one that everyone agrees on."""
    signature = identity.sign(signed_bytes(slot, identity.peer, Digest(bytes(32))))
    return msgspec.structs.replace(message, signature=signature)


def false_decision(said: Mapping[PeerId, Envelope], draw: Stream) -> Decided:
    """A decision as if one member had been silent."""
    silent = pick(draw, sorted(said))
    return Decided({bytes(peer): envelope for peer, envelope in said.items() if peer != silent}, {})


def false_waiting(frame: Waiting | RestartCertificate, draw: Stream) -> Waiting | RestartCertificate:
    """A claim to wait elsewhere, or for something else, or to have restarted."""
    slot = (frame.step, frame.tip, frame.incarnation)
    return pick(
        draw,
        (
            msgspec.structs.replace(frame, incarnation=frame.incarnation + 1),
            msgspec.structs.replace(frame, tip=bytes(32)),
            msgspec.structs.replace(frame, step=frame.step + 1),
            Waiting(*slot, None),
            Waiting(*slot, Ready(1, bytes(64))),
            RestartCertificate(*slot, {bytes([k]) * 32: Ready(1, bytes(64)) for k in range(9)}),
        ),
    )


# Blobs


def with_blob(frame: Blob, blob: bytes) -> Blob:
    return msgspec.structs.replace(frame, blob=memoryview(blob))


def oversized_blob(frame: Blob) -> Blob:
    return with_blob(frame, bytes(frame.blob).ljust(_OVERSIZE, b"\0"))


def not_numbers(frame: Blob) -> Blob:
    """A blob of the right length, with NaN for every number."""
    return with_blob(frame, np.full(len(frame.blob) // 4, math.nan, "<f4").tobytes())


def with_wrong_path(frame: PartSent | PartShown, draw: Stream) -> PartSent | PartShown:
    path = frame.path
    paths = (path[::-1] if path[::-1] != path else (bytes(32),), (), path[:-1], (*path, *[bytes(32)] * _LONGEST_PATH))
    return msgspec.structs.replace(frame, path=pick(draw, paths))


def early_and_large(identity: Identity, slot: Slot) -> Iterator[Packet]:
    """Relayed values and decisions of the next step, as long as a vote may be, which nobody can check yet."""
    later, payload = slot._replace(step=slot.step + 1, phase=Phase.VOTE), bytes(_EARLY_BYTES)
    for number in range(_EARLY_FRAMES):
        envelope = Envelope(payload, bytes([number]) * 64)
        yield Packet(later, Relayed(identity.peer, Value(envelope)))
        yield Packet(later, Decided({}, {bytes(identity.peer): (envelope, envelope)}))


# Views, and frames that claim to be of another peer


def signed_view(identity: Identity, slot: Slot, values: bytes | None) -> View:
    return View(values, identity.sign(view_bytes(slot, values)))


def values_digest(said: Mapping[PeerId, Value]) -> Digest:
    """Digest that an honest member signs which has heard these values."""
    parts = [part for peer in sorted(said) for part in (peer, blob_digest(said[peer].envelope.payload))]
    return tagged_hash("troth/values/1", *parts)


def forged_certificate(identity: Identity, slot: Slot, said: Mapping[PeerId, Value]) -> Iterator[View | Certificate]:
    """The liar's view that these were all values, and a certificate of everyone's views, which nobody else has signed."""
    view = signed_view(identity, slot, values_digest(said))
    yield view
    chain = {bytes(identity.peer): bytes(identity.sign(chain_bytes(slot, b"", values_digest(said))))}
    yield Certificate(values_digest(said), dict.fromkeys(sorted(said), view.signature), chain)


def impersonations(
    identity: Identity, slot: Slot, victim: PeerId, value: Value, members: Collection[PeerId], draw: Stream
) -> Iterator[Frame]:
    """A value of the victim, under the liar's signature or one made for another message; a part of it; everyone's view."""
    truth = value.envelope
    payload = truth.payload[:-1] + bytes([truth.payload[-1] ^ 1]) if truth.payload else b"\x90"
    digest = blob_digest(payload)
    chain = {bytes(identity.peer): bytes(identity.sign(chain_bytes(slot, victim, digest)))}
    for signature in (identity.sign(signed_bytes(slot, victim, digest)), truth.signature):
        yield Chained(victim, Envelope(payload, signature), chain)
        yield Relayed(victim, Value(Envelope(payload, signature)))
    yield value
    values = draw.words(4).tobytes()
    yield Relayed(victim, signed_view(identity, slot, values))
    signature = identity.sign(view_bytes(slot, values))
    yield Certificate(values, dict.fromkeys(sorted(members), signature), chain)  # sorted: equal seeds, equal worlds
    yield PartShown(int(draw.integers(8, 1)[0]), victim, (), memoryview(draw.words(4).tobytes()))
