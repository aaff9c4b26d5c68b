"""The setting of one announcement under test: its slot, the bound on delays, and cheap keys.

Signatures are tagged hashes over a secret, so that an announcement takes about a millisecond; one message can be signed in many
ways, as with Ed25519.
"""

from hashlib import sha256

from troth.crypto import Digest, PeerId, Slot, blob_digest, signed_bytes
from troth.protocol.wire.messages import Envelope
from troth.protocol.wire.primitives import Primitives

SLOT = Slot(Digest(bytes(32)), step=3, phase=1)
EARLIER_SLOT = Slot(Digest(bytes(32)), step=2, phase=1)
DELTA = 1.0
INSTANT = 1e-6  # before or after a deadline


class Key:
    """A stand-in for `Identity`: a signature is 32 bytes of nonce, then a hash over the secret."""

    def __init__(self, number: int) -> None:
        self.secret = sha256(b"secret %d" % number).digest()
        self.peer = PeerId(sha256(self.secret).digest())

    def sign(self, message: bytes, nonce: bytes = bytes(32)) -> bytes:
        return nonce + sha256(self.secret + nonce + message).digest()


KEYS = [Key(number) for number in range(9)]
KEY_OF = {key.peer: key for key in KEYS}


class CheapPrimitives(Primitives):
    """Primitives that verify the signatures of a `Key`."""

    def __init__(self) -> None:
        self._digests: dict[bytes, Digest] = {}

    def verify(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        key = KEY_OF.get(peer)
        return key is not None and len(signature) == 64 and key.sign(message, signature[:32]) == signature

    def digest(self, blob: bytes | memoryview) -> Digest:
        blob = bytes(blob)
        known = self._digests.get(blob)
        if known is None:
            known = self._digests[blob] = blob_digest(blob)
        return known


def sealed(key: Key, payload: bytes, slot: Slot = SLOT, nonce: bytes = bytes(32)) -> Envelope:
    """A payload that this key signed for the slot."""
    return Envelope(payload, key.sign(signed_bytes(slot, key.peer, blob_digest(payload)), nonce))
