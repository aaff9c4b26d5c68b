"""Small checks that the verification of evidence is made of."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from troth.crypto import Digest, PeerId, Slot, valid_peer
from troth.evidence.errors import UnprovedError
from troth.evidence.file_format import SignedMessage, envelope_of
from troth.protocol.history.record import exact_bytes
from troth.protocol.wire.messages import Announced, Malformed, Phase
from troth.protocol.wire.primitives import Primitives


@contextmanager
def refusing() -> Iterator[None]:
    """Have whatever a decoder raises refuse the file."""
    try:
        yield
    except UnprovedError:
        raise
    except (ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise UnprovedError(str(error)) from error


def expect(holds: bool, otherwise: str) -> None:
    """Raise `UnprovedError` with that reason unless the condition holds."""
    if not holds:
        raise UnprovedError(otherwise)


def key_of(text: str) -> PeerId:
    """Parse a public key; refuse bytes that are no valid one."""
    key = exact_bytes(text)
    expect(valid_peer(key), "not a valid key")
    return PeerId(key)


def digest_of(text: str) -> Digest:
    """Parse a digest of 32 bytes."""
    digest = exact_bytes(text)
    expect(len(digest) == 32, "not a digest")
    return Digest(digest)


def open_signed(message: SignedMessage, slot: Slot, tools: Primitives) -> Announced:
    """Decode a message that its sender signed for this slot."""
    announced = tools.open(slot, key_of(message.sender), envelope_of(message))
    if isinstance(announced, Malformed):
        raise UnprovedError(f"a {Phase(slot.phase).name.lower()} message of step {slot.step}: {announced.reason}")
    return announced
