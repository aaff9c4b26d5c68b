"""Shared randomness from coins that everyone commits to before anyone opens (SPEC R1, C2).

Two coins, because targets must not be known while anyone can still lie: coin A is opened once the aggregates are fixed and
gives the projections; coin B is opened with the accusations and gives the next step's roles.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from troth.crypto import Digest, PeerId, Slot, derive, tagged_hash
from troth.protocol.wire.primitives import Primitives


@dataclass(frozen=True)
class Coins:
    """Two secrets of 32 bytes, drawn afresh for every attempt."""

    a: bytes
    b: bytes


class SeededEntropy:
    """Repeatable secrets, for runs in which all peers are ours. Never with anyone else: the seed gives all of them away."""

    def __init__(self, seed: int, number: int) -> None:
        self._seed = seed
        self._number = number

    def coins(self, step: int, attempt: int) -> Coins:
        return Coins(*(derive(self._seed, "coin", which, self._number, step, attempt) for which in ("A", "B")))


def right_openings(
    which: str,
    commitments: Mapping[PeerId, bytes],
    openings: Mapping[PeerId, bytes],
    slot: Slot,
    tools: Primitives,
) -> dict[PeerId, bytes]:
    """Coins that fit their commitments. `slot` is that of the message with the commitments (SPEC C2, N2)."""
    return {
        peer: coin
        for peer, coin in openings.items()
        if peer in commitments and tools.coin_commitment(coin, slot, peer, which) == commitments[peer]
    }


def combine(purpose: str, step: int, attempt: int, coins: Mapping[PeerId, bytes]) -> Digest:
    """Hash all opened coins, in the order of keys: unpredictable if a single one is honest (SPEC A4, R1)."""
    parts = [part for peer in sorted(coins) for part in (peer, coins[peer])]
    return tagged_hash(f"troth/randomness/{purpose}/1", step.to_bytes(8, "big"), attempt.to_bytes(2, "big"), *parts)
