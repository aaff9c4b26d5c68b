"""Pure functions of identical bytes, computed once for all peers of a process (SPEC S1).

Without this, sixteen peers would verify every signature sixteen times. It can change no decision: keys are the bytes
themselves, and a test runs without it and gets the same trace.
"""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from troth.crypto import Context, Digest, PeerId
from troth.protocol.messages import Announced, Envelope, Malformed, Message, Phase
from troth.protocol.primitives import Primitives

R = TypeVar("R")


class MemoPrimitives(Primitives):
    """Remembers results until `forget`, which is called after every step: nothing older is asked for often."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def forget(self) -> None:
        self._known.clear()

    def verify(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        return self._once(
            ("verify", peer, message, signature), lambda: super(MemoPrimitives, self).verify(peer, message, signature)
        )

    def digest(self, blob: bytes) -> Digest:
        return self._once(("digest", blob), lambda: super(MemoPrimitives, self).digest(blob))

    def decode(self, phase: Phase, payload: bytes) -> Message | Malformed:
        return self._once(("decode", phase, payload), lambda: super(MemoPrimitives, self).decode(phase, payload))

    def projection(self, key: Digest, rows: int, size: int) -> NDArray[np.float64]:
        return self._once(
            ("projection", key, rows, size), lambda: super(MemoPrimitives, self).projection(key, rows, size)
        )

    def coin_commitment(self, coin: bytes, context: Context, owner: PeerId, which: str) -> Digest:
        return self._once(
            ("coin", coin, context, owner, which),
            lambda: super(MemoPrimitives, self).coin_commitment(coin, context, owner, which),
        )

    def open(self, context: Context, sender: PeerId, envelope: Envelope) -> Announced | Malformed:
        return self._once(
            ("open", context, sender, envelope), lambda: super(MemoPrimitives, self).open(context, sender, envelope)
        )

    def _once(self, key: Hashable, compute: Callable[[], R]) -> R:
        if key not in self._known:
            self._known[key] = compute()
        result: R = self._known[key]
        return result
