"""Messages between two peers beside the protocol: who they are, which run they mean, how far they are."""

from typing import Annotated

import msgspec

from troth.crypto import Digest, PeerId, tagged_hash
from troth.protocol.wire.messages import Bytes32, Bytes64, Malformed, Step

VERSION = 13  # raised with every change after which peers would compute something else: they are refused, and nobody is banned
MOST_BYTES = 1 << 14
CONTROL_SESSION, CONTROL_PACKET = b"\x00", b"\x01"  # first byte of a control message: a session's, or the protocol's
_Text = Annotated[str, msgspec.Meta(max_length=500)]


class _SessionMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """A message whose class travels as its name."""


class Hello(_SessionMessage, frozen=True):
    """The first message of each side. Nothing else is heard before it."""

    version: int
    run: Bytes32
    # Digests of the manifest's sections, to say which of them differ.
    sections: Annotated[dict[_Text, Bytes32], msgspec.Meta(max_length=32)]
    member: Bytes32  # its seat: its own key, or the one that its own key succeeds
    delegation: Bytes64 | None  # by the key of the seat, if it is another
    process: Bytes32  # drawn at random when the sender started: two of them with one key are two machines
    machine: _Text = ""  # what it computes with, for people to read where hardware classes differ


class Standing(_SessionMessage, frozen=True):
    """How far the sender is in the run."""

    ready: bool  # it reaches everyone it needs, and waits for them to be ready
    begun: bool
    step: Step


class Refused(_SessionMessage, frozen=True):
    """The sender refuses the connection, and why."""

    why: _Text
    key_in_use: bool = False  # another process with the same key is connected, and alive


class KeyInUse(_SessionMessage, frozen=True):
    """Another process with the receiver's key has tried to connect, and was refused."""


class Goodbye(_SessionMessage, frozen=True):
    """The sender leaves on purpose: nobody needs to wait for it, or to dial it."""


class DialBack(_SessionMessage, frozen=True):
    """The sender asks whether the receiver reaches it at this address."""

    address: Annotated[str, msgspec.Meta(max_length=128, pattern=r"^[!-~]+$")]


class Reached(_SessionMessage, frozen=True):
    """The answer to `DialBack`."""

    yes: bool


SessionMessage = Hello | Standing | Refused | KeyInUse | Goodbye | DialBack | Reached
NOWHERE = Standing(ready=False, begun=False, step=0)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[SessionMessage] = msgspec.msgpack.Decoder(SessionMessage, strict=True)


def encode_session_message(message: SessionMessage) -> bytes:
    return _ENCODER.encode(message)


def decode_session_message(raw: bytes) -> SessionMessage | Malformed:
    if len(raw) > MOST_BYTES:
        return Malformed(f"{len(raw)} bytes, at most {MOST_BYTES}")
    try:
        return _DECODER.decode(raw)
    except (ValueError, RecursionError) as error:
        return Malformed(str(error)[:200])


def delegation_bytes(run: Digest, successor: PeerId) -> bytes:
    """The bytes that a key signs for its successor, which takes its seat on the wire."""
    return tagged_hash("troth/delegation/1", run, successor)
