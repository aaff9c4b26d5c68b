"""Rows of float32 where they lie: kept alive here, and given to compiled loops as addresses."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# R rows, D coordinates

Array = NDArray[Any]


class Rows:
    """Equally long rows, stacked or separate. A row that is not contiguous or not aligned is copied."""

    def __init__(self, rows: Sequence[Array] | Array) -> None:
        self._kept = [_in_place(row_D) for row_D in rows]  # else their memory could be given away
        self.size = len(self._kept[0]) if self._kept else 0
        assert all(row_D.shape == (self.size,) for row_D in self._kept), "loops read as many numbers from every row"
        self.addresses_R = np.array([address(row_D) for row_D in self._kept], dtype=np.uintp)

    def __len__(self) -> int:
        return len(self._kept)


def _in_place(row_D: Array) -> Array:
    assert row_D.dtype == np.float32, f"loops read float32, not {row_D.dtype}"
    return np.require(row_D, np.float32, ["C", "A"])


def address(numbers_D: Array) -> int:
    """Where contiguous numbers begin."""
    place: int = numbers_D.__array_interface__["data"][0]
    return place
