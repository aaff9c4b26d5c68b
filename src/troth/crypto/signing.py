"""All signed bytes are made here. A golden test pins them byte for byte."""

from typing import NamedTuple

from troth.crypto.hashing import Digest, tagged_hash
from troth.crypto.identity import PeerId

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
