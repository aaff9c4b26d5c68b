"""Pure functions of identical bytes, computed once for all peers of a process (SPEC S1).

Without this, sixteen peers would verify every signature sixteen times. It can change no decision: keys are the bytes
themselves, and a test runs without it and gets the same trace.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.crypto import Digest, PeerId, Slot
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Announced, Envelope, Malformed, Message, Phase, ReportNumbers
from troth.protocol.wire.primitives import Primitives
from troth.protocol.wire.report_table import ReportTable

R = TypeVar("R")
_SHORT = 1 << 16  # bytes that are looked up; longer ones are hashed again, since looking them up takes as long


class MemoPrimitives(Primitives):
    """Remembers results until `forget`, which is called after every step: older ones are seldom needed."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__(device)
        self._signs: dict[Hashable, Any] = {}
        self._older_signs: dict[Hashable, Any] = {}  # of the step before: auditors need them
        self._known: dict[Hashable, Any] = {}
        self._same: dict[tuple[int, ...], tuple[tuple[object, ...], dict[Hashable, Any]]] = {}  # objects by identity
        self._digests: dict[bytes, Digest] = {}
        self._leaves: dict[
            tuple[int, int, Digest], Digest
        ] = {}  # a contributor's tree is opened part by part by its owners
        self._nodes: dict[tuple[Digest, Digest], Digest] = {}
        self._projections: dict[Hashable, NDArray[np.float64]] = {}
        self._older_projections: dict[Hashable, NDArray[np.float64]] = {}  # of the step before: auditors need them

    def forget(self) -> None:
        self._known.clear()
        self._same.clear()
        for digests in (self._digests, self._leaves, self._nodes):
            digests.clear()
        self._projections, self._older_projections = {}, self._projections
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

    def verify(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        key = ("verify", peer, message, signature)
        if key not in self._known:
            self._known[key] = super().verify(peer, message, signature)
        known: bool = self._known[key]
        return known

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
        known = self._digests.get(blob)
        if known is None:
            known = self._digests[blob] = super().digest(blob)
        return known

    def leaf(self, part: int, count: int, blob: Digest) -> Digest:
        key = (part, count, blob)
        known = self._leaves.get(key)
        if known is None:
            known = self._leaves[key] = super().leaf(part, count, blob)
        return known

    def node(self, left: Digest, right: Digest) -> Digest:
        known = self._nodes.get((left, right))
        if known is None:
            known = self._nodes[left, right] = super().node(left, right)
        return known

    def unpack(self, numbers: bytes, parts: int, projections: int) -> ReportNumbers | Malformed:
        key = ("unpack", numbers, parts, projections)
        if key not in self._known:
            self._known[key] = super().unpack(numbers, parts, projections)
        known: ReportNumbers | Malformed = self._known[key]
        return known

    def table(self, reports: Sequence[ReportNumbers]) -> ReportTable:
        plain = super().table
        return self.once_for(tuple(reports), "table", lambda: plain(reports))

    def decode(self, phase: Phase, payload: bytes) -> Message | Malformed:
        key = ("decode", phase, payload)
        if key not in self._known:
            self._known[key] = super().decode(phase, payload)
        known: Message | Malformed = self._known[key]
        return known

    def projection(self, key: Digest, rows: int, size: int) -> NDArray[np.float64]:
        question = (key, rows, size)
        known = self._projections.get(question, self._older_projections.get(question))
        if known is None:
            known = self._projections[question] = super().projection(key, rows, size)
        return known

    def cut(self, numbers_D: Tensor, bounds: Sequence[int]) -> tuple[Blob, ...]:
        """Nothing is kept: a gradient is cut once, and where everyone audits there are hundreds of them."""
        _, known = self._same.get((id(numbers_D),), (None, {}))
        return known.get(("cut", *bounds)) or super().cut(numbers_D, bounds)

    def was_cut(self, vector_D: Tensor, bounds: Sequence[int], blobs: tuple[Blob, ...]) -> None:
        """Note pieces of a vector that were hashed before a peer asks for them."""
        self.once_for((vector_D,), ("cut", *bounds), lambda: blobs)

    def joined(self, blobs: Sequence[Blob]) -> Tensor:
        return self.once(
            ("joined", *(blob.digest for blob in blobs)), lambda: super(MemoPrimitives, self).joined(blobs)
        )

    def scaled(self, numbers_D: Tensor, factor: float) -> Tensor:
        return self.once_for((numbers_D,), factor, lambda: super(MemoPrimitives, self).scaled(numbers_D, factor))

    def sign_bytes(self, key: Digest, rows: int, size: int, start: int, stop: int) -> NDArray[np.uint8]:
        whole: NDArray[np.uint8] = self._signs_of(
            ("bytes", key, rows, size), lambda: super(MemoPrimitives, self).sign_bytes(key, rows, size, 0, size)
        )
        return whole[start:stop]

    def signs_on_device(self, key: Digest, rows: int, size: int, start: int, stop: int) -> Tensor:
        whole: Tensor = self._signs_of(
            ("device", key, rows, size),
            lambda: super(MemoPrimitives, self).signs_on_device(key, rows, size, 0, size),
        )
        return whole[start:stop]

    def _signs_of(self, question: Hashable, draw: Callable[[], Any]) -> Any:
        known = self._signs.get(question, self._older_signs.get(question))
        if known is None:
            known = self._signs[question] = draw()
        return known

    def aggregate_norm(self, blob: Blob) -> float | None:
        key = ("aggregate norm", blob.digest)
        if key not in self._known:
            self._known[key] = super().aggregate_norm(blob)
        known: float | None = self._known[key]
        return known

    def coin_commitment(self, coin: bytes, slot: Slot, owner: PeerId, which: str) -> Digest:
        key = ("coin", coin, slot, owner, which)
        if key not in self._known:
            self._known[key] = super().coin_commitment(coin, slot, owner, which)
        known: Digest = self._known[key]
        return known

    def open(self, slot: Slot, sender: PeerId, envelope: Envelope) -> Announced | Malformed:
        key = ("open", slot, sender, envelope)
        if key not in self._known:
            self._known[key] = super().open(slot, sender, envelope)
        known: Announced | Malformed = self._known[key]
        return known

    def open_all(self, slot: Slot, envelopes: Mapping[PeerId, Envelope]) -> Mapping[PeerId, Announced]:
        plain = super().open_all
        return self.once_for((envelopes,), ("open", slot), lambda: plain(slot, envelopes))
