"""Vectors in chunks: their digest commits to an index, and the index to every chunk, so that each can be checked alone.

The vectors follow each other in the order of their names, and each is cut anew. Chunks are numbered through all of them.
"""

from collections.abc import Iterator, Mapping, Set
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.crypto import CHUNK_BYTES, Digest, chunk_hash, chunk_hashes, digest_of_chunks
from troth.protocol.wire.blob import bytes_of
from troth.protocol.wire.messages import MOST_MEMBERS, Bytes32, Malformed

_NUMBERS: Mapping[str, torch.dtype] = {"torch.float32": torch.float32, "torch.float64": torch.float64}


class VectorIndex(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One vector: its name, number format and length, and the hashes of its chunks."""

    name: Annotated[str, msgspec.Meta(max_length=200)]
    dtype: Literal["torch.float32", "torch.float64"]
    count: Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
    chunks: tuple[Bytes32, ...]

    @property
    def length(self) -> int:
        """In bytes."""
        return self.count * _NUMBERS[self.dtype].itemsize

    @property
    def digest(self) -> Digest:
        return digest_of_chunks(self.length, self.chunks)


_Index = Annotated[tuple[VectorIndex, ...], msgspec.Meta(max_length=MOST_MEMBERS)]
_DECODER = msgspec.msgpack.Decoder(_Index, strict=True)


def index_of(vectors: Mapping[str, Tensor]) -> tuple[VectorIndex, ...]:
    """The index of these vectors."""
    return tuple(
        VectorIndex(name, str(vector_D.dtype), len(vector_D), tuple(chunk_hashes(bytes_of(vector_D))))  # type: ignore[arg-type]
        for name, vector_D in sorted(vectors.items())
    )


def encode_index(index: tuple[VectorIndex, ...]) -> bytes:
    return msgspec.msgpack.encode(index)


def decode_index(raw: bytes) -> tuple[VectorIndex, ...] | Malformed:
    """An index as a peer sent it. Whoever uses it compares the digest that follows from it."""
    try:
        index = _DECODER.decode(raw)
    except (ValueError, msgspec.MsgspecError) as error:
        return Malformed(f"not an index: {error}")
    if [vector.name for vector in index] != sorted({vector.name for vector in index}):
        return Malformed("vectors out of order, or twice")
    if any(len(vector.chunks) != -(-vector.length // CHUNK_BYTES) for vector in index):
        return Malformed("another number of chunks than the vector has")
    return index


def chunk_of(vectors: Mapping[str, Tensor], number: int) -> memoryview | None:
    """A chunk of these vectors, by its number."""
    for _, vector_D in sorted(vectors.items()):
        chunks = -(-vector_D.nbytes // CHUNK_BYTES)
        if number < chunks:
            width = CHUNK_BYTES // vector_D.element_size()
            return bytes_of(vector_D[number * width : (number + 1) * width])
        number -= chunks
    return None


class _Place(NamedTuple):
    """Where a chunk belongs, and what it has to be."""

    vector: NDArray[np.uint8]
    start: int
    hash: bytes


class CollectedVectors:
    """Vectors that are filled in chunk by chunk; a chunk counts only if it has the hash that the index names."""

    def __init__(self, index: tuple[VectorIndex, ...], vectors: dict[str, Tensor] | None = None) -> None:
        empty = {vector.name: torch.empty(vector.count, dtype=_NUMBERS[vector.dtype]) for vector in index}
        self._vectors = vectors or empty  # by name
        self._places = list(self._places_of(index))
        self._missing = set(range(len(self._places)))

    def _places_of(self, index: tuple[VectorIndex, ...]) -> Iterator[_Place]:
        for vector in index:
            whole = self._vectors[vector.name].view(torch.uint8).numpy() if vector.count else np.empty(0, np.uint8)
            for number, expected in enumerate(vector.chunks):
                yield _Place(whole, number * CHUNK_BYTES, expected)

    @property
    def missing(self) -> Set[int]:
        return self._missing

    def length(self, number: int) -> int:
        place = self._places[number]
        return min(CHUNK_BYTES, len(place.vector) - place.start)

    def put(self, number: int, chunk: memoryview) -> bool:
        """Take a chunk, if it is the right one; one that is here already stays."""
        if not 0 <= number < len(self._places):
            return False
        place, length = self._places[number], self.length(number)
        if len(chunk) != length or chunk_hash(chunk) != place.hash:
            return False
        if number in self._missing:
            place.vector[place.start : place.start + length] = np.frombuffer(chunk, np.uint8)
            self._missing.discard(number)
        return True

    def vectors(self) -> dict[str, Tensor]:
        assert not self._missing
        return self._vectors
