"""Pure functions of identical bytes, computed once for all peers of a process (SPEC S1).

Without this, sixteen peers would verify every signature sixteen times. It can change no decision: keys are the bytes
themselves, and a test runs without it and gets the same trace.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.crypto import Digest, PeerId, Slot
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Announced, Envelope, ReportNumbers
from troth.protocol.wire.primitives import Primitives
from troth.protocol.wire.report_table import ReportTable

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
_SHORT = 1 << 16  # bytes that are looked up; longer ones are hashed again, since looking them up takes as long


def _remembered(plain: F) -> F:
    """A method of `Primitives` that answers each question once."""
    name = plain.__name__

    @wraps(plain)
    def look_up(tools: "MemoPrimitives", *question: Hashable) -> Any:
        key = (name, *question)
        if key not in tools._known:
            tools._known[key] = getattr(super(MemoPrimitives, tools), name)(*question)
        return tools._known[key]

    return cast(F, look_up)


class MemoPrimitives(Primitives):
    """Remembers results until `forget`, which is called after every step: older ones are seldom needed."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__(device)
        self._known: dict[Hashable, Any] = {}
        self._same: dict[tuple[int, ...], tuple[tuple[object, ...], dict[Hashable, Any]]] = {}  # objects by identity
        self._signs: dict[Hashable, Any] = {}
        self._older_signs: dict[Hashable, Any] = {}  # of the step before: auditors need them

    def forget(self) -> None:
        self._known.clear()
        self._same.clear()
        self._signs, self._older_signs = {}, self._signs

    def once(self, key: Hashable, compute: Callable[[], R]) -> R:
        """For other pure functions; the key holds digests of all bytes that the result depends on."""
        if key not in self._known:
            self._known[key] = compute()
        known: R = self._known[key]
        return known

    def once_for(self, objects: tuple[object, ...], key: Hashable, compute: Callable[[], R]) -> R:
        """For pure functions of objects that are never changed: of the very same ones it is computed once."""
        identity = tuple(map(id, objects))
        _, known = self._same.setdefault(identity, (objects, {}))  # held, so that no other object gets its number
        if key not in known:
            known[key] = compute()
        result: R = known[key]
        return result

    def known_of(self, objects: tuple[object, ...], key: Hashable) -> Any:
        """What `once_for` has found, or None."""
        return self._same.get(tuple(map(id, objects)), (None, {}))[1].get(key)

    def drawn(self, key: Hashable, draw: Callable[[], R]) -> R:
        """For signs of a step, which auditors need in the next one too."""
        known = self._signs.get(key, self._older_signs.get(key))
        if known is None:
            known = self._signs[key] = draw()
        result: R = known
        return result

    verify = _remembered(Primitives.verify)
    leaf = _remembered(Primitives.leaf)  # a contributor's tree is opened part by part by its owners
    node = _remembered(Primitives.node)
    unpack = _remembered(Primitives.unpack)
    decode = _remembered(Primitives.decode)
    coin_commitment = _remembered(Primitives.coin_commitment)
    open = _remembered(Primitives.open)

    def verify_all(self, questions: Sequence[tuple[PeerId, bytes, bytes]]) -> list[bool]:
        new = [question for question in dict.fromkeys(questions) if ("verify", *question) not in self._known]
        for question, answer in zip(new, super().verify_all(new), strict=True):
            self._known["verify", *question] = answer
        return [self._known["verify", *question] for question in questions]

    def verify_soon(self, about: Digest, questions: Callable[[], Sequence[tuple[PeerId, bytes, bytes]]]) -> None:
        self.once(("verified", about), lambda: self.verify_all(questions()))

    def digest(self, blob: bytes | memoryview) -> Digest:
        if len(blob) > _SHORT:
            return super().digest(blob)
        blob = bytes(blob)
        return self.once(("digest", blob), lambda: super(MemoPrimitives, self).digest(blob))

    def aggregate_norm(self, blob: Blob) -> float | None:
        return self.once(("aggregate norm", blob.digest), lambda: super(MemoPrimitives, self).aggregate_norm(blob))

    def table(self, reports: Sequence[ReportNumbers]) -> ReportTable:
        plain = super().table
        return self.once_for(tuple(reports), "table", lambda: plain(reports))

    def joined(self, blobs: Sequence[Blob]) -> Tensor:
        plain = super().joined
        return self.once(("joined", *(blob.digest for blob in blobs)), lambda: plain(blobs))

    def scaled(self, numbers_D: Tensor, factor: float) -> Tensor:
        plain = super().scaled
        return self.once_for((numbers_D,), factor, lambda: plain(numbers_D, factor))

    def projection(self, key: Digest, rows: int, size: int) -> NDArray[np.float64]:
        plain = super().projection
        return self.drawn(("projection", key, rows, size), lambda: plain(key, rows, size))

    def sign_bytes(self, key: Digest, rows: int, size: int, start: int, stop: int) -> NDArray[np.uint8]:
        plain = super().sign_bytes
        return self.drawn(("signs", key, rows, size), lambda: plain(key, rows, size, 0, size))[start:stop]

    def open_all(self, slot: Slot, envelopes: Mapping[PeerId, Envelope]) -> Mapping[PeerId, Announced]:
        plain = super().open_all
        return self.once_for((envelopes,), ("open", slot), lambda: plain(slot, envelopes))
