"""Blobs: parts and aggregates as objects, with their digest computed once.

The bytes stay where they are, in a message that came off the network or in a tensor. Nothing large is copied to be hashed,
compared or looked up: digests stand for blobs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.clip.blocks import FLOAT32, Form
from troth.crypto import (
    CHUNK_BYTES,
    LEAF_BYTES,
    Digest,
    chunk_hash,
    chunk_hashes,
    digest_of_chunks,
    digest_of_leaves,
    hashes_of_leaves,
)
from troth.protocol.wire.messages import MOST_MEMBERS, Bytes32, Malformed

# D coordinates

SETTLES_BYTES = 1 << 24  # from here on, blobs that are put together give up the memory that they came in


class Blob:
    """Bytes that are never changed, read as numbers in a form that the run agreed on (SPEC C4) where they stand for some."""

    __slots__ = ("_digest", "_leaf_hashes", "_numbers_D", "_place", "_there", "_view", "form")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._view: memoryview | None = memoryview(data)
        self._numbers_D: Tensor | None = None
        self._place: tuple[Tensor, int, int] | None = None  # a vector, and where in it the numbers lie
        self._there: Tensor | None = None  # the bytes, on a device
        self._digest: Digest | None = None
        self._leaf_hashes: bytes | None = None
        self.form: Form = FLOAT32  # of numbers that are here without their bytes

    @classmethod
    def of(cls, numbers_D: Tensor, form: Form = FLOAT32) -> "Blob":
        """A blob of numbers that this form can hold, without a copy: the tensor must not be changed any more."""
        blob = cls(b"")
        blob._view, blob._numbers_D, blob.form = None, numbers_D.detach().contiguous(), form
        return blob

    @classmethod
    def hashed_there(
        cls, whole_D: Tensor, span: tuple[int, int], form: Form, raw: Tensor, leaf_hashes: bytes
    ) -> "Blob":
        """A blob of numbers that stay where they are in a vector, on a device where their bytes were hashed; these are copied to
        the host whenever they are asked for."""
        blob = cls(b"")
        blob._place, blob._view, blob._there, blob.form = (whole_D, *span), None, raw, form
        blob._leaf_hashes, blob._digest = leaf_hashes, digest_of_leaves(len(raw), leaf_hashes)
        return blob

    @classmethod
    def cut(
        cls, numbers_D: Tensor, bounds: Sequence[int], form: Form = FLOAT32, view: memoryview | None = None
    ) -> tuple["Blob", ...]:
        """Blobs of the pieces between bounds, at which a block begins. `view`: the bytes of all numbers, where they are on the
        host already."""
        numbers_D = numbers_D.detach().contiguous()
        view = form.pack(numbers_D) if view is None else view
        blobs = tuple(cls(view[form.length(start) : form.length(stop)]) for start, stop in pairwise(bounds))
        for blob, (start, stop) in zip(blobs, pairwise(bounds), strict=True):
            blob._numbers_D, blob.form = numbers_D[start:stop], form
        return blobs

    def __len__(self) -> int:
        if self._place is not None:
            return self.form.length(self._place[2] - self._place[1])
        if self._view is not None:
            return len(self._view)
        assert self._numbers_D is not None
        return self.form.length(len(self._numbers_D))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blob) and (self is other or self.view == other.view)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Blob({len(self)} bytes)"

    @property
    def view(self) -> memoryview:
        """The bytes, on the host."""
        if self._there is not None:
            return bytes_of(self._there)
        if self._place is not None:
            whole_D, start, stop = self._place
            return self.form.pack(whole_D[start:stop])
        if self._view is None:
            assert self._numbers_D is not None
            self._view = self.form.pack(self._numbers_D)
        return self._view

    def came_to_host(self, view: memoryview) -> None:
        """Take note of the bytes of numbers that lie elsewhere: they need not be copied again."""
        self._view = view

    @property
    def digest(self) -> Digest:
        if self._digest is None:
            self._digest = digest_of_leaves(len(self), self.leaf_hashes)
        return self._digest

    @property
    def leaf_hashes(self) -> bytes:
        """Hashes of its leaves, one after the other: with them each can be checked alone."""
        if self._leaf_hashes is None:
            (self._leaf_hashes,) = hashes_of_leaves([self.view])
        return self._leaf_hashes

    @staticmethod
    def leaves(blobs: Sequence["Blob"], number: int) -> list[memoryview]:
        """The bytes of one leaf of each."""
        span = slice(number * LEAF_BYTES, (number + 1) * LEAF_BYTES)
        there = [blob._there[span] for blob in blobs if blob._there is not None]
        came = iter(torch.stack(there).cpu() if there else ())  # in one wait
        return [blob.view[span] if blob._there is None else bytes_of(next(came)) for blob in blobs]

    def array_D(self, form: Form = FLOAT32) -> NDArray[np.float32] | None:  # noqa: N802  # shapes are in the names
        """The numbers, on the host, not to be written to; None if the bytes are no numbers in this form."""
        if self._knows(form) and not self._known_D.is_cuda:
            numbers: NDArray[np.float32] = self._known_D.numpy()
            return numbers
        return form.unpack(self.view)

    def numbers_D(self, device: torch.device | str = "cpu", form: Form = FLOAT32) -> Tensor:  # noqa: N802
        """The numbers, on this device, of bytes that are some in this form."""
        found_D = self.read_D(device, form)
        assert found_D is not None, "whoever takes bytes from a peer has looked at them"
        return found_D

    def read_D(self, device: torch.device | str, form: Form) -> Tensor | None:  # noqa: N802
        """The same, or None if the bytes are no numbers in this form."""
        if self._place is not None:
            return self._known_D.to(device)
        if not self._knows(form):
            found_D = self._unpacked_D(torch.device(device), form)
            if found_D is None:
                return None
            self._numbers_D, self.form = found_D, form
        assert self._numbers_D is not None
        here_D = self._numbers_D.to(device)
        if not self._numbers_D.is_cuda:
            self._numbers_D = here_D
        return here_D

    def _unpacked_D(self, device: torch.device, form: Form) -> Tensor | None:  # noqa: N802
        if device.type != "cpu":
            return form.unpack_to(self.view, device)
        array_D = form.unpack(self.view)
        if array_D is None:
            return None
        return torch.from_numpy(array_D if array_D.flags.writeable else array_D.copy())

    def _knows(self, form: Form) -> bool:
        """Whether the numbers are here, and those of this form."""
        return self.form == form and (self._place is not None or self._numbers_D is not None)

    @property
    def _known_D(self) -> Tensor:  # noqa: N802
        if self._place is not None:
            whole_D, start, stop = self._place
            return whole_D[start:stop]
        assert self._numbers_D is not None
        return self._numbers_D

    def copy_to(self, target_D: Tensor, form: Form = FLOAT32) -> bool:
        """Copy the numbers to a vector on the host, zeros if the bytes are none in this form; tell whether they were."""
        target = target_D.numpy()
        if self._knows(form) and not self._known_D.is_cuda:
            target[:] = self._known_D.numpy()
        elif form.unpack(self.view, target) is None:
            target[:] = 0.0
            return False
        return True

    def settle(self, whole_D: Tensor, start: int, form: Form = FLOAT32) -> bool:
        """Copy the numbers to this place in a vector on the host, and let go of the memory that they came in; tell whether the
        bytes were numbers in this form, else there are zeros.

        The blob looks them up there from then on, so where the vector moves, to a file for instance, the blob moves too."""
        stop = start + form.count(len(self))
        if not self.copy_to(whole_D[start:stop], form):
            return False
        self._place, self._view, self._numbers_D, self.form = (whole_D, start, stop), None, None, form
        return True

    def anew(self) -> "Blob":
        """The same bytes as another peer receives them: it has to hash them itself."""
        return Blob(self.view)


def digest_all(blobs: Iterable[Blob]) -> None:
    """Compute the digests that are still to be computed, all together: threads share the work."""
    new = [blob for blob in blobs if blob._digest is None]
    for blob, hashes in zip(new, hashes_of_leaves([blob.view for blob in new]), strict=True):
        blob._leaf_hashes = hashes
        blob._digest = digest_of_leaves(len(blob), hashes)


def bytes_of(numbers: Tensor) -> memoryview:
    """The bytes of a tensor, little-endian, on the host; there they are not copied."""
    array: NDArray[np.generic] = numbers.detach().cpu().contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8).data


# Vectors in chunks: their digest commits to an index, and the index to every chunk, so that each can be checked alone.
#
# The vectors follow each other in the order of their names, and each is cut anew. Chunks are numbered through all of them.


_NUMBERS: Mapping[str, torch.dtype] = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.uint8)}


class VectorIndex(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One vector: its name, number format and length, and the hashes of its chunks."""

    name: Annotated[str, msgspec.Meta(max_length=200)]
    dtype: Literal["torch.float32", "torch.float64", "torch.uint8"]  # the last for bytes of another form
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
