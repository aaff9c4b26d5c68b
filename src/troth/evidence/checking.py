"""The small checks that all checking of evidence is made of."""

from troth.crypto import Digest, PeerId, Slot, valid_peer
from troth.evidence.form import SignedMessage, envelope_of, exact_bytes
from troth.protocol.wire.messages import Announced, Malformed, Phase
from troth.protocol.wire.primitives import Primitives


class UnprovedError(ValueError):
    """The file does not prove what it says; the message says where it breaks."""


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise UnprovedError(otherwise)


def key_of(text: str) -> PeerId:
    key = exact_bytes(text)
    expect(valid_peer(key), "not a valid key")
    return PeerId(key)


def digest_of(text: str) -> Digest:
    digest = exact_bytes(text)
    expect(len(digest) == 32, "not a digest")
    return Digest(digest)


def opened(message: SignedMessage, slot: Slot, tools: Primitives) -> Announced:
    """What its sender signed for this place."""
    announced = tools.open(slot, key_of(message.sender), envelope_of(message))
    if isinstance(announced, Malformed):
        raise UnprovedError(f"a {Phase(slot.phase).name.lower()} message of step {slot.step}: {announced.reason}")
    return announced
