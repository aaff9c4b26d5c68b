"""Large vectors that are seldom read, moved from memory to files: the states and aggregates of the last steps (SPEC K1).

A vector stays the same object with the same numbers; only the place changes, so everyone who holds it gives the memory back. The
files have no name: nothing is left of them when the vector is gone, or the process.
"""

import mmap
import tempfile
from collections.abc import Iterable, MutableMapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

# D coordinates

RESTS_FROM = 1 << 25  # numbers of a vector for which reading it back is better than its 128 MB of memory
_DROP = getattr(mmap, "MADV_DONTNEED", None)  # gives back the pages of a mapped file; they are read again when needed
_RESTING: MutableMapping[Tensor, mmap.mmap] = WeakIdKeyDictionary()  # and the maps that they lie in


def rest(vectors: Iterable[Tensor], folder: Path) -> None:
    """Move these vectors to files on the folder's disk, if they are large and on the host. Views of a vector, if there are any,
    keep its memory. Raises OSError if the disk is full."""
    for vector_D in vectors:
        large = vector_D.numel() >= RESTS_FROM and vector_D.device.type == "cpu" and vector_D.is_contiguous()
        if large and vector_D not in _RESTING:
            _RESTING[vector_D] = _move(vector_D, folder)
    give_back_pages()


def give_back_pages() -> None:
    """Give back the memory that resting vectors have taken since they were read."""
    for mapped in list(_RESTING.values()):
        if _DROP is not None:
            mapped.madvise(_DROP)


def resting() -> int:
    """The number of vectors that rest."""
    return len(list(_RESTING.values()))


def _move(vector_D: Tensor, folder: Path) -> mmap.mmap:
    numbers_D = vector_D.detach().numpy()
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(numbers_D.data)
        file.flush()
        mapped = mmap.mmap(file.fileno(), numbers_D.nbytes, access=mmap.ACCESS_COPY)
    vector_D.data = torch.from_numpy(np.frombuffer(mapped, numbers_D.dtype).reshape(numbers_D.shape))
    return mapped
