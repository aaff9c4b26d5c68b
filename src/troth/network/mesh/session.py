"""What two peers tell each other beside the protocol: who they are, which run they mean, how far they are."""

from typing import Annotated

import msgspec

from troth.crypto import Digest, PeerId, tagged_hash
from troth.protocol.wire.messages import Bytes32, Bytes64, Malformed, Step

VERSION = 2
MOST_BYTES = 1 << 14
_Text = Annotated[str, msgspec.Meta(max_length=500)]


class _Said(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    pass


class Hello(_Said, frozen=True):
    """The first thing that each side says. Nothing else is heard before it."""

    version: int
    run: Bytes32
    sections: Annotated[
        dict[_Text, Bytes32], msgspec.Meta(max_length=32)
    ]  # digests of the manifest, to say what differs
    member: Bytes32  # who it is in the run: its own key, or the one that it had before
    delegation: Bytes64 | None  # by that one, if it is another


class Standing(_Said, frozen=True):
    """How far the sender is."""

    ready: bool  # it reaches everyone it needs, and waits for the others
    begun: bool
    step: Step


class Refused(_Said, frozen=True):
    """Why the sender wants nothing to do with the other."""

    why: _Text


Said = Hello | Standing | Refused

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(Said, strict=True)


def encode_said(said: Said) -> bytes:
    return _ENCODER.encode(said)


def decode_said(raw: bytes) -> Said | Malformed:
    if len(raw) > MOST_BYTES:
        return Malformed(f"{len(raw)} bytes, at most {MOST_BYTES}")
    try:
        return _DECODER.decode(raw)
    except (ValueError, RecursionError) as error:
        return Malformed(str(error)[:200])


def delegation_bytes(run: Digest, successor: PeerId) -> bytes:
    """What an old key signs for the one that takes its place on the wire."""
    return tagged_hash("troth/vouch/1", run, successor)
