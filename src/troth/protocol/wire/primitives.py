"""The pure functions of bytes that peers in one process may share.

A peer on its own uses this class as it is. A simulation may pass a subclass that memoises (SPEC S1): identical bytes give
identical answers, so no decision depends on it, and a test that switches the memory off gets the same trace.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.aggregation import exact_norm, has_subnormals
from troth.crypto import (
    Digest,
    PeerId,
    Slot,
    blob_digest,
    coin_commitment,
    project,
    projection_signs,
    signed_bytes,
    verify,
)
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Announced, Envelope, Malformed, Message, Phase, ReportNumbers
from troth.protocol.wire.phases import decode

# P vectors, K projections, D coordinates

_FEW_SIGNS = 1 << 22  # up to this many signs are kept as float64 to multiply with: 32 MB

_CACHED = 1 << 15  # float64 numbers that fit into the processor's cache

DTYPE = "float32"  # of gradients and aggregates, little-endian


class Primitives:
    """Signatures, digests, decoding, projections, norms and coin commitments, as pure functions."""

    def verify(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        return verify(peer, message, signature)

    def digest(self, blob: bytes | memoryview) -> Digest:
        return blob_digest(blob)

    def unpack(self, numbers: bytes, parts: int, projections: int) -> ReportNumbers | Malformed:
        return ReportNumbers.unpack(numbers, parts, projections)

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

    def aggregate_norm(self, blob: Blob) -> float | None:
        """Length of an aggregate to the last bit; None if it holds a NaN, an infinity or a subnormal (SPEC A3, C3)."""
        numbers_D = blob.array_D
        return exact_norm(numbers_D) if ordinary(numbers_D) else None

    def joined(self, blobs: Sequence[Blob]) -> Tensor:
        """The numbers of several blobs, one after the other."""
        return torch.cat([blob.numbers_D() for blob in blobs])

    def scaled(self, numbers_D: Tensor, factor: float) -> Tensor:
        """Numbers times a factor. One rounding of the factor, one multiplication each: the same bits everywhere (SPEC U3)."""
        return numbers_D if factor == 1.0 else numbers_D * torch.tensor(factor, dtype=torch.float32)

    def coin_commitment(self, coin: bytes, slot: Slot, owner: PeerId, which: str) -> Digest:
        return coin_commitment(coin, slot, owner, which)

    def open(self, slot: Slot, sender: PeerId, envelope: Envelope) -> Announced | Malformed:
        """Check the signature over this slot and sender, then decode."""
        if not self.verify(sender, signed_bytes(slot, sender, self.digest(envelope.payload)), envelope.signature):
            return Malformed("the signature does not fit")
        message = self.decode(Phase(slot.phase), envelope.payload)
        return message if isinstance(message, Malformed) else Announced(sender, message, envelope)


def all_finite(numbers_D: NDArray[np.float32]) -> bool:
    """Tell whether all numbers are finite. Nearly always they are, and then their sum shows it.

    einsum is the fastest sum that neither starts threads nor warns."""
    return math.isfinite(np.einsum("d->", numbers_D)) or bool(np.isfinite(numbers_D).all())


def ordinary(numbers_D: NDArray[np.float32]) -> bool:
    """Tell whether the numbers mean the same on every machine: finite, and none subnormal (SPEC C3)."""
    return all_finite(numbers_D) and not has_subnormals(numbers_D)


def row_norms(rows_PD: NDArray[np.float32]) -> NDArray[np.float64]:
    """Lengths of rows to twelve digits or more, not to the last bit: for numbers that are checked with a tolerance."""
    squares_P, width = np.zeros(len(rows_PD)), max(1, _CACHED // len(rows_PD))
    for start in range(0, rows_PD.shape[1], width):
        wide_PC = rows_PD[:, start : start + width].astype(np.float64)
        squares_P += np.einsum("pc,pc->p", wide_PC, wide_PC)
    return np.sqrt(squares_P)


def part_norms(numbers_D: NDArray[np.float32], bounds: Sequence[int]) -> NDArray[np.float64]:
    """Lengths of a vector's parts, as exact as `row_norms`."""
    if len(numbers_D) <= _CACHED:
        squares_D = np.square(numbers_D, dtype=np.float64)
        return np.sqrt(np.add.reduceat(squares_D, bounds[:-1]))
    return np.concatenate([row_norms(numbers_D[None, start:stop]) for start, stop in pairwise(bounds)])
