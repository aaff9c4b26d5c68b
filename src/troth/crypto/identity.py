"""Ed25519 identities: who a peer is, and how its key is kept."""

import os
from pathlib import Path
from typing import NamedTuple, NewType

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from troth.crypto.hashing import Digest, tagged_hash

PeerId = NewType("PeerId", bytes)  # the 32 bytes of the public key: a peer is its key
Signature = NewType("Signature", bytes)  # 64 bytes

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
# The y coordinates of the eight points of small order. With such a key one signature fits many messages.
_SMALL_ORDER_Y = frozenset(
    (
        0,
        1,
        _P - 1,
        2707385501144840649318225287225658788936804267575313519463743609750303402022,
        55188659117513257062467267217118295137698188065244968500265048394206261417927,
    )
)


class KeyFileError(Exception):
    """A key file that cannot be used; the message says why and what to do."""


class Identity:
    """A private key, which signs and is never printed."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.peer = PeerId(
            private.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        )

    @classmethod
    def generate(cls) -> "Identity":
        """Make a new key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_secret(cls, secret: bytes) -> "Identity":
        """Make an identity of 32 secret bytes; simulations derive them from a seed."""
        return cls(Ed25519PrivateKey.from_private_bytes(secret))

    def sign(self, message: bytes) -> Signature:
        return Signature(self._private.sign(message))

    def sealed_key(self, password: bytes) -> bytes:
        """The private key in PEM, encrypted: for libraries that read keys from files only (TLS).

        With a password that is drawn for one use and never written down, no disk and no backup ever holds the key.
        """
        return self._private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key, readable by its owner only. An existing file is never overwritten: a lost key is lost."""
        secret = self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as error:
            raise KeyFileError(f"{path} exists already: move it away first, or choose another name") from error
        with os.fdopen(handle, "wb") as file:
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Identity":
        """Read a key that nobody else can read."""
        try:
            mode = os.stat(path).st_mode & 0o777
            raw = Path(path).read_bytes()
        except OSError as error:
            raise KeyFileError(f"cannot read the key file {path}: {error.strerror}") from error
        if mode & 0o077:
            raise KeyFileError(f"{path} can be read by others (mode {mode:o}): run chmod 600 {path}")
        try:
            private = serialization.load_pem_private_key(raw, password=None)
        except (ValueError, TypeError) as error:
            raise KeyFileError(f"{path} is not an unencrypted private key in PEM format") from error
        if not isinstance(private, Ed25519PrivateKey):
            raise KeyFileError(f"{path} holds a key of another kind than Ed25519")
        return cls(private)


def valid_peer(key: bytes) -> bool:
    """Tell whether these bytes can be a peer: a canonical encoding of a point that is not of small order (SPEC M2)."""
    if len(key) != 32:
        return False
    y = int.from_bytes(key, "little") & ((1 << 255) - 1)
    return y < _P and y not in _SMALL_ORDER_Y


def verify(peer: PeerId, message: bytes, signature: bytes) -> bool:
    """Verify strictly: canonical key and scalar, no point of small order (SPEC M2).

    Lenient verifiers accept several signatures for one message, and peers with different libraries would disagree about
    who lied.
    """
    if len(signature) != 64 or not valid_peer(peer) or not valid_peer(signature[:32]):
        return False
    if int.from_bytes(signature[32:], "little") >= _ORDER:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(peer).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


# All signed bytes are made here. A golden test pins them byte for byte.


PROTOCOL_VERSION = 1


class Slot(NamedTuple):
    """The run, step, phase, attempt and incarnation that a message is signed for; in any other slot it is worth nothing.

    That stops replays: of an old step, of a discarded attempt, or from before a restart.
    """

    run: Digest
    step: int
    phase: int
    attempt: int = 0
    incarnation: int = 0


def signed_bytes(slot: Slot, sender: PeerId, payload: Digest) -> bytes:
    """Lay out the bytes that a peer signs, around the digest of its payload (SPEC M1). Nothing is re-encoded to be checked."""
    return b"".join(
        (
            b"troth/signed",
            PROTOCOL_VERSION.to_bytes(2, "big"),
            slot.run,
            slot.incarnation.to_bytes(4, "big"),
            slot.step.to_bytes(8, "big"),
            slot.attempt.to_bytes(2, "big"),
            slot.phase.to_bytes(1, "big"),
            sender,
            payload,
        )
    )


def coin_commitment(coin: bytes, slot: Slot, owner: PeerId, which: str) -> Digest:
    """Bind a coin to its owner and slot, so that nobody can commit to a copy of another's coin (SPEC C2)."""
    return tagged_hash("troth/coin/1", signed_bytes(slot, owner, Digest(bytes(32))), which.encode(), coin)
