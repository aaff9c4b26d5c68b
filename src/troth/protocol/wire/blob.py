"""Blobs: parts and aggregates as objects, with their digest computed once.

The bytes stay where they are, in a message that came off the network or in a tensor. Nothing large is copied to be hashed,
compared or looked up: digests stand for blobs.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import cycle, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.crypto import LEAF_BYTES, Digest, blob_digest, blob_digests, digest_of_leaves
from troth.kernels import on_device

# D coordinates

SETTLES_BYTES = 1 << 24  # from here on, blobs that are put together give up the memory that they came in
_HASHING = 4  # streams: hashes on an accelerator that were begun one after the other do not wait for each other


class Blob:
    """Bytes that are never changed, read as little-endian float32 where they stand for numbers."""

    __slots__ = ("_copy", "_digest", "_numbers_D", "_place", "_view")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._view: memoryview | None = memoryview(data)
        self._numbers_D: Tensor | None = None
        self._place: tuple[Tensor, int, int] | None = None  # a vector, and where in it the numbers lie
        self._copy: Copy | None = None  # the numbers on their way to the host
        self._digest: Digest | None = None

    @classmethod
    def of(cls, numbers_D: Tensor) -> "Blob":
        """A blob of float32 numbers, without a copy: the tensor must not be changed any more. Numbers on an accelerator set out
        for the host, and are waited for when their bytes are wanted."""
        if not numbers_D.is_cuda:
            return cls.cut(numbers_D, (0, len(numbers_D)))[0]
        blob = cls.placed(numbers_D.detach().contiguous(), 0, len(numbers_D))
        blob._copy = Copy(numbers_D)
        return blob

    @classmethod
    def placed(cls, whole_D: Tensor, start: int, stop: int, digest: Digest | None = None) -> "Blob":
        """A blob of numbers that stay where they are in a vector; bytes are copied to the host whenever they are asked for."""
        blob = cls(b"")
        blob._place, blob._view, blob._digest = (whole_D, start, stop), None, digest
        return blob

    @classmethod
    def cut(cls, numbers_D: Tensor, bounds: Sequence[int]) -> tuple["Blob", ...]:
        """Blobs of the pieces between bounds. Numbers on an accelerator are copied to the host once, as a whole."""
        copy = Copy(numbers_D)
        return cls._pieces(copy.numbers_D, copy.on_host(), bounds)

    @classmethod
    def _pieces(cls, numbers_D: Tensor, host_D: NDArray[np.float32], bounds: Sequence[int]) -> tuple["Blob", ...]:
        view = host_D.data.cast("B")
        blobs = tuple(cls(view[4 * start : 4 * stop]) for start, stop in pairwise(bounds))
        for blob, (start, stop) in zip(blobs, pairwise(bounds), strict=True):
            blob._numbers_D = numbers_D[start:stop]
        return blobs

    def __len__(self) -> int:
        if self._place is not None:
            return 4 * (self._place[2] - self._place[1])
        return len(self.view)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blob) and (self is other or self.view == other.view)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Blob({len(self)} bytes)"

    @property
    def view(self) -> memoryview:
        """The bytes, on the host."""
        if self._view is not None:
            return self._view
        if (copy := self._copy) is not None:
            view = self._view = copy.on_host().data.cast("B")
            return view
        assert self._place is not None
        whole_D, start, stop = self._place
        return Copy(whole_D[start:stop]).on_host().data.cast("B")

    @property
    def digest(self) -> Digest:
        if self._digest is None:
            self._digest = blob_digest(self.view)
        return self._digest

    @property
    def array_D(self) -> NDArray[np.float32]:  # noqa: N802  # shapes are in the names
        """The numbers, on the host; not to be written to. Copied where the sender chose a place between two numbers."""
        array_D = np.frombuffer(self.view, "<f4")
        return array_D if array_D.flags.aligned else array_D.copy()

    def numbers_D(self, device: torch.device | str = "cpu") -> Tensor:  # noqa: N802
        """The numbers, on this device."""
        if self._place is not None:
            whole_D, start, stop = self._place
            return whole_D[start:stop].to(device)
        if self._numbers_D is None:
            array_D = self.array_D
            self._numbers_D = torch.from_numpy(array_D if array_D.flags.writeable else array_D.copy())
        if self._numbers_D.device != torch.device(device):
            self._numbers_D = self._numbers_D.to(device)
        return self._numbers_D

    def settle(self, whole_D: Tensor, start: int) -> None:
        """Copy the numbers to this place in a vector on the host, and let go of the memory that they came in.

        The blob looks them up there from then on, so where the vector moves, to a file for instance, the blob moves too."""
        stop = start + len(self) // 4
        whole_D[start:stop].numpy()[:] = self.array_D
        self._place, self._view, self._numbers_D, self._copy = (whole_D, start, stop), None, None, None

    def anew(self) -> "Blob":
        """The same bytes as another peer receives them: it has to hash them itself."""
        return Blob(self.view)


def digest_all(blobs: Iterable[Blob]) -> None:
    """Compute the digests that are still to be computed, all together: threads share the work."""
    new = [blob for blob in blobs if blob._digest is None]
    for blob, digest in zip(new, blob_digests([blob.view for blob in new]), strict=True):
        blob._digest = digest


class Copy:
    """Numbers on their way to the host; on the host they are there already.

    A stream of its own lets copies pass what is still computed. Pinned memory is several times as fast, and PyTorch keeps it for
    the next copy.
    """

    def __init__(self, numbers_D: Tensor) -> None:
        self.numbers_D = self._host_D = numbers_D.detach().contiguous()
        self._arrived: torch.cuda.Event | None = None
        if not numbers_D.is_cuda:
            return
        aside = _copying(numbers_D.device)
        aside.wait_stream(torch.cuda.current_stream(numbers_D.device))
        with torch.cuda.stream(aside):
            self._host_D = torch.empty(numbers_D.shape, dtype=numbers_D.dtype, pin_memory=True)
            self._host_D.copy_(self.numbers_D, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def on_host(self) -> NDArray[Any]:
        """The numbers, little-endian, once they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        numbers: NDArray[Any] = self._host_D.numpy()
        return numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)


class Hashing:
    """Digests of pieces of vectors that are computed on the accelerator on which these lie, beside everything else there.

    Thousands of leaves take as long as one, longer than the host takes for a few. So this is for many at once, begun before they
    are needed.
    """

    def __init__(
        self, vectors: Sequence[Tensor], bounds: Sequence[int], behind: Sequence[torch.cuda.Event] = ()
    ) -> None:
        """`behind`: what to wait for on the accelerator, beside all that the caller's stream has begun."""
        self.bounds = tuple(bounds)
        self._vectors = [vector_D.detach() for vector_D in vectors]
        aside, places_2N = next(_hashing(vectors[0].device)), on_device.leaf_places(vectors, bounds, LEAF_BYTES // 4)
        # No copy is queued behind something that takes long: in the same queue, all other copies would wait behind it.
        brought = torch.cuda.Event()  # type: ignore[no-untyped-call]
        brought.record()
        for event in (brought, *behind):
            aside.wait_event(event)
        with torch.cuda.stream(aside):
            self._there_N8 = on_device.begin_hashes(self._vectors, places_2N)
            self._computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._computed.record()
        for tensor in (places_2N, *vectors):
            tensor.record_stream(aside)  # its memory is not given away before

    @cached_property
    def blobs(self) -> list[tuple[Blob, ...]]:
        """The pieces of every vector, once their digests have arrived."""
        self._computed.synchronize()
        raw, at, blobs = self._there_N8.cpu().numpy().astype(">i4").tobytes(), 0, []
        for vector_D in self._vectors:
            pieces = []
            for start, stop in pairwise(self.bounds):
                length = 4 * (stop - start)
                before, at = at, at + 32 * -(-length // LEAF_BYTES)
                pieces.append(Blob.placed(vector_D, start, stop, digest_of_leaves(length, raw[before:at])))
            blobs.append(tuple(pieces))
        return blobs


@cache
def _hashing(device: torch.device) -> Iterator[torch.cuda.Stream]:
    return cycle([torch.cuda.Stream(device) for _ in range(_HASHING)])  # type: ignore[no-untyped-call]


@cache
def _copying(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
