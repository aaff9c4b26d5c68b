"""The phases of a step, one row each: message, time allowed, and the phases that may follow.

A new phase is a member of `Phase`, a message type in the union `Message`, a row here, and a forgery in
`workshop/attacks/lies.py`. The size bound of a message follows from its type. Numbers follow the order of a step, since
peers compare them to know what is early, and they are signed: with a new one in the middle the wire format is another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from troth.crypto import Identity, Slot, blob_digest, signed_bytes
from troth.protocol.wire.messages import (
    LARGEST_NUMBER,
    Accuse,
    Clip,
    Close,
    Commit,
    Confirm,
    Envelope,
    Malformed,
    Message,
    Phase,
    Report,
    Reveal,
    Vote,
)


@dataclass(frozen=True)
class Allowance:
    """Time from the end of the last announcement until values are due, in units of the run's timeouts."""

    deltas: int = 0  # message delays
    exchanges: int = 0  # rounds of blobs
    gradients: int = 0  # gradients to compute
    audits: int = 0  # how often the longest list of audits is computed
    disclosures: bool = False  # bulk for each disputed part beyond the first: no link takes all at once (SPEC V3)


@dataclass(frozen=True)
class PhaseRow:
    """One phase: its message, the time allowed for it, and the phases that may follow."""

    message: type[Message]
    allowance: Allowance
    followed_by: tuple[Phase, ...]  # in the same attempt; any phase may abort it, and CLIP of the next one follows


PHASES: Mapping[Phase, PhaseRow] = {
    # ACCUSE follows COMMIT in the closing step.
    Phase.COMMIT: PhaseRow(Commit, Allowance(deltas=1, gradients=1), (Phase.CLIP, Phase.ACCUSE)),
    # Three exchanges: parts are scattered, missing ones circulated, and forwarded.
    Phase.CLIP: PhaseRow(Clip, Allowance(exchanges=3), (Phase.REVEAL,)),
    Phase.REVEAL: PhaseRow(Reveal, Allowance(exchanges=1), (Phase.CONFIRM, Phase.REPORT)),
    Phase.CONFIRM: PhaseRow(Confirm, Allowance(exchanges=1), (Phase.REPORT,)),
    # The exchange is for aggregates that Reveal or Confirm left missing: they are fetched before it.
    Phase.REPORT: PhaseRow(Report, Allowance(exchanges=1), (Phase.ACCUSE,)),
    # An auditor computes what it accuses of twice. CLOSE follows ACCUSE in the closing step.
    Phase.ACCUSE: PhaseRow(Accuse, Allowance(audits=2), (Phase.VOTE, Phase.CLOSE)),
    Phase.VOTE: PhaseRow(Vote, Allowance(exchanges=1, audits=1, disclosures=True), (Phase.CLOSE,)),
    Phase.CLOSE: PhaseRow(Close, Allowance(), ()),
}


def follows(last: Slot, now: Slot) -> bool:
    """Tell whether a member that announced in slot `last` may announce in slot `now` next."""
    if (last.incarnation, last.step) != (now.incarnation, now.step):
        return now.phase == Phase.COMMIT
    if last.attempt != now.attempt:
        return now.attempt > last.attempt and now.phase == Phase.CLIP
    return now.phase in PHASES[Phase(last.phase)].followed_by


# Sizes


def most_encoded_bytes(kind: Any) -> int:
    """Bound the msgpack encoding of any value of this type."""
    match kind:
        case msgspec.inspect.Metadata(type=inner):
            return most_encoded_bytes(inner)
        case msgspec.inspect.StructType(fields=fields):
            return _header(len(fields), short=15) + sum(most_encoded_bytes(field.type) for field in fields)
        case msgspec.inspect.VarTupleType(item_type=item, max_length=int(most)):
            return _header(most, short=15) + most * most_encoded_bytes(item)
        case msgspec.inspect.UnionType(types=types):
            return max(map(most_encoded_bytes, types))
        case msgspec.inspect.BytesType(max_length=int(most)) | msgspec.inspect.StrType(max_length=int(most)):
            return _header(most, short=0) - (most < 1 << 8) + most  # our texts are ASCII
        case msgspec.inspect.IntType(ge=int(least), lt=lt, le=le) if least >= 0 and not (lt is None and le is None):
            return _number(lt - 1 if lt is not None else le or 0)
        case msgspec.inspect.EnumType(cls=cls):
            return _number(max(int(member.value) for member in cls))
        case msgspec.inspect.FloatType():
            return 9
        case msgspec.inspect.BoolType() | msgspec.inspect.NoneType():
            return 1
    raise TypeError(f"no bound follows from {kind}: give it one")


def _header(count: int, *, short: int) -> int:
    """Size of the header of an array; that of bytes is the same, except for lengths that fit into one byte."""
    return 1 if count <= short else 3 if count < 1 << 16 else 5


def _number(most: int) -> int:
    """Size of the longest encoding of an integer from 0 to `most`."""
    return next(1 + extra for extra, bits in ((0, 7), (1, 8), (2, 16), (4, 32), (8, 64)) if most < 1 << bits)


_MOST_BYTES = {int(phase): most_encoded_bytes(msgspec.inspect.type_info(row.message)) for phase, row in PHASES.items()}


def most_bytes(phase: int) -> int:
    """Upper bound of a message of this phase; -1 where nothing is announced."""
    return _MOST_BYTES.get(int(phase), -1)  # by number: an enum's hash is slow, and this runs for every packet


# Bytes

_PHASES: Mapping[type[Message], Phase] = {row.message: phase for phase, row in PHASES.items()}
_DECODERS = {phase: msgspec.msgpack.Decoder(row.message, strict=True) for phase, row in PHASES.items()}
_ENCODER = msgspec.msgpack.Encoder()


def phase_of(message: Message) -> Phase:
    return _PHASES[type(message)]


def encode(message: Message) -> bytes:
    return _ENCODER.encode(message)


def decode(phase: Phase, payload: bytes) -> Message | Malformed:
    """Bound, parse strictly, and check the numbers: a fault is a value, not an exception (SPEC M3)."""
    if len(payload) > most_bytes(phase):
        return Malformed(f"{len(payload)} bytes, at most {most_bytes(phase)}")
    try:
        message: Message = _DECODERS[phase].decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # an address that is no text
        return Malformed(str(error))
    flaw = _wrong_numbers(message)
    return message if flaw is None else Malformed(flaw)


def _wrong_numbers(message: Message) -> str | None:
    match message:
        case Commit(root=root, length=length) if (root is None) != (length is None):
            return "a Commit must have both root and length, or neither"
        case Commit(length=float(length)) if not 0 <= length <= LARGEST_NUMBER:
            return "the length of a gradient must be finite, from 0 to 2^400"
        case Clip(centers=centers) if not all(
            0 <= number <= LARGEST_NUMBER for center in centers for number in (center.norm, center.rounding)
        ):
            return "the norm and the rounding of an aggregate must be finite, from 0 to 2^400"
        case Report(numbers=raw) if len(raw) % 8 or not (np.abs(np.frombuffer(raw, "<f8")) <= LARGEST_NUMBER).all():
            return "a report must consist of finite float64 numbers up to 2^400"
    return None


def seal(identity: Identity, slot: Slot, message: Message) -> Envelope:
    payload = encode(message)
    return Envelope(payload, identity.sign(signed_bytes(slot, identity.peer, blob_digest(payload))))


def wire_bytes(envelope: Envelope) -> bytes:
    return _ENCODER.encode(envelope)
