"""Large vectors that are seldom read, moved from memory to files: the states and aggregates of the last steps (SPEC K1).

A vector stays the same object with the same numbers; only the place changes, so everyone who holds it gives the memory back. The
files have no name: nothing is left of them when the vector is gone, or the process.
"""

import mmap
import tempfile
from collections.abc import Iterable
from pathlib import Path
from weakref import ReferenceType, ref

import numpy as np
import torch
from torch import Tensor

# D coordinates

RESTS_FROM = 1 << 25  # numbers of a vector for which reading it back is better than its 128 MB of memory
_DROP = getattr(mmap, "MADV_DONTNEED", None)  # gives back the pages of a mapped file; they are read again when needed


class RestingVectors:
    """Vectors in files of one folder's disk, mapped into memory page by page when they are read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._resting: list[tuple[ReferenceType[Tensor], mmap.mmap]] = []

    def rest(self, vectors: Iterable[Tensor]) -> None:
        """Move these vectors to files, if they are large and on the host, and give back the pages of those that were read since
        the last call. Views of a vector, if there are any, keep its memory. Raises OSError if the disk is full."""
        self._resting = [(one, mapped) for one, mapped in self._resting if one() is not None]
        known = {id(one()) for one, _ in self._resting}
        for vector_D in vectors:
            large = vector_D.numel() >= RESTS_FROM and vector_D.device.type == "cpu" and vector_D.is_contiguous()
            if large and id(vector_D) not in known:
                known.add(id(vector_D))
                self._resting.append((ref(vector_D), self._move(vector_D)))
        if _DROP is not None:
            for _, mapped in self._resting:
                mapped.madvise(_DROP)

    @property
    def count(self) -> int:
        """Vectors that rest here, as of the last call."""
        return len(self._resting)

    def _move(self, vector_D: Tensor) -> mmap.mmap:
        numbers_D = vector_D.detach().numpy()
        with tempfile.TemporaryFile(dir=self._folder) as file:
            file.write(numbers_D.data)
            file.flush()
            mapped = mmap.mmap(file.fileno(), numbers_D.nbytes, access=mmap.ACCESS_COPY)
        vector_D.data = torch.from_numpy(np.frombuffer(mapped, numbers_D.dtype).reshape(numbers_D.shape))
        return mapped
