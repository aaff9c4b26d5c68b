"""The pure functions of bytes that peers in one process may share.

A peer on its own uses this class as it is. A simulation may pass a subclass that memoises (SPEC S1): identical bytes give
identical answers, so no decision depends on it, and a test that switches the memory off gets the same trace.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.clip import kernels, on_device
from troth.clip.blocks import FLOAT32, Form
from troth.clip.exact import ordinary_norm
from troth.clip.kernels import Differences
from troth.crypto import (
    Digest,
    PeerId,
    Slot,
    blob_digest,
    coin_commitment,
    leaf_hash,
    node_hash,
    project,
    projection_signs,
    side_by_side,
    sign_bytes,
    signed_bytes,
    verify,
)
from troth.protocol.wire.blob import SETTLES_BYTES, Blob, digest_all
from troth.protocol.wire.messages import Announced, Envelope, Malformed, Message, Phase, ReportNumbers
from troth.protocol.wire.phases import decode

# Reports of all contributors side by side: sums and medians that V1 to V3 and the scales begin with.


# C contributors, P parts, K projections
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ReportTable:
    """Reports in the order of the contributors' keys. Nothing here is compared with a threshold."""

    reports: tuple[ReportNumbers, ...]

    @cached_property
    def lengths_CP(self) -> Floats:  # noqa: N802  # shapes are in the names
        return np.stack([report.lengths_P for report in self.reports])

    @cached_property
    def norms_CP(self) -> Floats:  # noqa: N802
        return np.stack([report.norms_P for report in self.reports])

    @cached_property
    def projections_CPK(self) -> Floats:  # noqa: N802
        return np.stack([report.projections_PK for report in self.reports])

    @cached_property
    def rms_of_sums_P(self) -> Floats:  # noqa: N802
        """Root mean square, over the projections, of their sums over the contributors; in plain float64."""
        rms_P: Floats = np.sqrt(np.square(self.projections_CPK.sum(axis=0)).mean(axis=1))
        return rms_P

    @cached_property
    def rms_CP(self) -> Floats:  # noqa: N802
        """Root mean square of each contributor's projections; in plain float64."""
        rms_CP: Floats = np.sqrt(np.square(self.projections_CPK).mean(axis=2))
        return rms_CP

    @cached_property
    def median_lengths_P(self) -> Floats:  # noqa: N802
        """Lower medians over the contributors."""
        return self._lower_medians(self.lengths_CP)

    @cached_property
    def median_norms_P(self) -> Floats:  # noqa: N802
        """Lower medians over the contributors."""
        return self._lower_medians(self.norms_CP)

    def about(self, part: int) -> ReportNumbers:
        """Reports about one part: a row per contributor, instead of per part."""
        return ReportNumbers(self.lengths_CP[:, part], self.norms_CP[:, part], self.projections_CPK[:, part])

    def _lower_medians(self, numbers_CP: Floats) -> Floats:
        medians_P: Floats = np.sort(numbers_CP, axis=0)[(len(numbers_CP) - 1) // 2]
        return medians_P


# P vectors, K projections, D coordinates, S spans of them

_FEW_SIGNS = 1 << 22  # up to this many signs are kept as float64 to multiply with: 32 MB

_CACHED = 1 << 15  # float64 numbers that fit into the processor's cache


class Primitives:
    """Signatures, digests, decoding, projections, norms and coin commitments, as pure functions."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)  # on which large vectors are compared and joined

    def verify(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        return verify(peer, message, signature)

    def verify_all(self, questions: Sequence[tuple[PeerId, bytes, bytes]]) -> list[bool]:
        """`verify` of many, on threads."""
        return side_by_side(lambda question: verify(*question), questions)

    def verify_soon(self, about: Digest, questions: Callable[[], Sequence[tuple[PeerId, bytes, bytes]]]) -> None:
        """Take note that these will be asked for one by one; a memory may check them together, once for each `about`."""

    def digest(self, blob: bytes | memoryview) -> Digest:
        return blob_digest(blob)

    def leaf(self, part: int, count: int, blob: Digest, form: Form = FLOAT32) -> Digest:
        """Leaf of a part of so many numbers in its gradient's Merkle tree (SPEC C1)."""
        return leaf_hash(part, count, form.name, blob)

    def node(self, left: Digest, right: Digest) -> Digest:
        """Node of a Merkle tree."""
        return node_hash(left, right)

    def unpack(self, numbers: bytes, parts: int, projections: int) -> ReportNumbers | Malformed:
        return ReportNumbers.unpack(numbers, parts, projections)

    def table(self, reports: Sequence[ReportNumbers]) -> ReportTable:
        """All reports side by side."""
        return ReportTable(tuple(reports))

    def decode(self, phase: Phase, payload: bytes) -> Message | Malformed:
        return decode(phase, payload)

    def projection(self, key: Digest, rows: int, size: int) -> NDArray[np.float64]:
        """Draw K×D signs, as float64 to multiply with."""
        signs_KD = projection_signs(key, rows, 0, size).astype(np.float64)
        signs_KD.setflags(write=False)  # peers in one process may share them
        return signs_KD

    def project(
        self, key: Digest, rows: int, size: int, start: int, vectors_PD: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Project P vectors, which stand at `start` of `size` coordinates, onto K sign rows: P×K products (SPEC A5)."""
        if rows * size > _FEW_SIGNS:
            return project(key, rows, start, vectors_PD)
        signs_KD = self.projection(key, rows, size)[:, start : start + vectors_PD.shape[1]]
        products_PK: NDArray[np.float64] = vectors_PD @ signs_KD.T
        return products_PK

    def sign_bytes(self, key: Digest, rows: int, size: int, start: int, stop: int) -> NDArray[np.uint8]:
        """Signs of the coordinates from `start` to `stop` of `size`, as bits of their bytes."""
        return sign_bytes(key, rows, start, stop)

    def signs_on_device(self, key: Digest, rows: int, size: int, start: int, stop: int) -> Tensor:
        """The same bytes, on the device."""
        return torch.from_numpy(self.sign_bytes(key, rows, size, start, stop)).to(self.device)

    def projector(self, key: Digest, rows: int, size: int) -> "Projector":
        """The K sign rows of a step, over `size` coordinates (SPEC A5)."""
        return Projector(self, key, rows, size)

    def aggregate_norm(self, blob: Blob, form: Form = FLOAT32) -> float | None:
        """Length of an aggregate to the last bit; None if it is no numbers, or holds a NaN, an infinity or a subnormal (SPEC
        A3, C3, C4)."""
        array_D = blob.array_D(form)  # on the host, where the bytes are that were hashed
        return None if array_D is None else ordinary_norm(array_D)

    def rounding(self, blob: Blob, form: Form) -> float:
        """Most that rounding moves an aggregate that came out like this one (SPEC C4)."""
        return form.rounding(blob.view)

    def cut(
        self, numbers_D: Tensor, bounds: Sequence[int], form: Form = FLOAT32, key: bytes = b""
    ) -> tuple[Tensor, tuple[Blob, ...]]:
        """A vector as this form holds it, rounded by chance with a key; and its pieces between bounds, hashed."""
        rounded_D, view = form.round_and_pack(numbers_D, key)
        blobs = Blob.cut(rounded_D, bounds, form, view)
        digest_all(blobs)
        return rounded_D, blobs

    async def hashed(self, blobs: Sequence[Blob]) -> None:
        """Compute the digests of these blobs. Others may work meanwhile."""
        digest_all(blobs)

    def joined(self, blobs: Sequence[Blob], form: Form = FLOAT32) -> Tensor:
        """The numbers of several blobs, which are some, one after the other. Large ones lie there from then on."""
        if self.device.type == "cpu" and sum(map(len, blobs)) >= SETTLES_BYTES:
            starts = [0, *accumulate(form.count(len(blob)) for blob in blobs)]
            whole_D = torch.empty(starts[-1])
            for blob, start in zip(blobs, starts, strict=False):
                blob.settle(whole_D, start, form)
            return whole_D
        return torch.cat([blob.numbers_D(self.device, form) for blob in blobs])

    def scaled(self, numbers_D: Tensor, factor: float) -> Tensor:
        """Numbers times a factor. One rounding of the factor, one multiplication each: the same bits everywhere (SPEC U3)."""
        return numbers_D if factor == 1.0 else numbers_D * float(np.float32(factor))

    def coin_commitment(self, coin: bytes, slot: Slot, owner: PeerId, which: str) -> Digest:
        return coin_commitment(coin, slot, owner, which)

    def open(self, slot: Slot, sender: PeerId, envelope: Envelope) -> Announced | Malformed:
        """Check the signature over this slot and sender, then decode."""
        if not self.genuine(slot, sender, envelope):
            return Malformed("the signature does not fit")
        return self.read(slot, sender, envelope)

    def genuine(self, slot: Slot, sender: PeerId, envelope: Envelope) -> bool:
        """Whether the sender signed this for this slot."""
        return self.verify(*self._signed(slot, sender, envelope))

    def _signed(self, slot: Slot, sender: PeerId, envelope: Envelope) -> tuple[PeerId, bytes, bytes]:
        """What `verify` asks for."""
        return sender, signed_bytes(slot, sender, self.digest(envelope.payload)), envelope.signature

    def read(self, slot: Slot, sender: PeerId, envelope: Envelope) -> Announced | Malformed:
        """Decode a message whose signature was checked."""
        message = self.decode(Phase(slot.phase), envelope.payload)
        return message if isinstance(message, Malformed) else Announced(sender, message, envelope)

    def open_all(self, slot: Slot, envelopes: Mapping[PeerId, Envelope]) -> Mapping[PeerId, Announced]:
        """All messages of a slot: anything malformed, or not signed by its sender, was not said (SPEC M3)."""
        right = self.verify_all([self._signed(slot, sender, envelope) for sender, envelope in envelopes.items()])
        signed = [item for item, fits in zip(envelopes.items(), right, strict=True) if fits]
        opened = {sender: self.read(slot, sender, envelope) for sender, envelope in signed}
        return MappingProxyType({peer: said for peer, said in opened.items() if not isinstance(said, Malformed)})


UNSHARED = Primitives()  # for whoever computes alone


@dataclass(frozen=True)
class Projector:
    """K sign rows over `size` coordinates: `Primitives.project` with its first arguments given, and a way for large vectors."""

    tools: Primitives
    key: Digest
    rows: int
    size: int

    def __call__(self, start: int, vectors_PD: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.tools.project(self.key, self.rows, self.size, start, vectors_PD)

    def differences(
        self, vectors_PD: Tensor, center_D: Tensor, bounds: Sequence[int], start: int = 0
    ) -> Differences | None:
        """Compare float32 vectors that stand at `start` with a centre, span by span, in one pass; None where they are too small
        for it to be worth while."""
        tools, key, rows, size = self.tools, self.key, self.rows, self.size
        if vectors_PD.device.type != "cpu":
            signs_DB = tools.signs_on_device(key, rows, size, start + bounds[0], start + bounds[-1])
            found = on_device.differences(vectors_PD, center_D, bounds, signs_DB)
            return found._replace(products_SPK=found.products_SPK[..., :rows])
        if rows * size <= _FEW_SIGNS:
            return None

        def signs(first: int, last: int) -> NDArray[np.uint8]:
            return tools.sign_bytes(key, rows, size, start + first, start + last)

        here, center = vectors_PD.detach().numpy(), center_D.detach().cpu().numpy()
        if not kernels.takes(here, center):
            return None
        found = kernels.differences(here, center, bounds, signs)
        return found._replace(products_SPK=found.products_SPK[..., :rows])


def row_norms(rows_PD: NDArray[np.float32]) -> NDArray[np.float64]:
    """Lengths of rows to twelve digits or more, not to the last bit: for numbers that are checked with a tolerance."""
    if kernels.takes(rows_PD):
        found_P: NDArray[np.float64] = np.sqrt(kernels.squared_lengths(rows_PD, (0, rows_PD.shape[1]))[0])
        return found_P
    squares_P, width = np.zeros(len(rows_PD)), max(1, _CACHED // len(rows_PD))
    for start in range(0, rows_PD.shape[1], width):
        wide_PC = rows_PD[:, start : start + width].astype(np.float64)
        squares_P += np.einsum("pc,pc->p", wide_PC, wide_PC)
    return np.sqrt(squares_P)


def part_norms(vector_D: Tensor, bounds: Sequence[int]) -> NDArray[np.float64]:
    """Lengths of a vector's parts, as exact as `row_norms`."""
    if vector_D.device.type != "cpu":
        return np.sqrt(on_device.squared_parts(vector_D, bounds))
    numbers_D = vector_D.detach().numpy()
    if len(numbers_D) <= _CACHED:
        squares_D = np.square(numbers_D, dtype=np.float64)
        return np.sqrt(np.add.reduceat(squares_D, bounds[:-1]))
    if kernels.takes(numbers_D):
        return np.sqrt(kernels.squared_lengths(numbers_D[None], bounds)[:, 0])
    return np.concatenate([row_norms(numbers_D[None, start:stop]) for start, stop in pairwise(bounds)])
