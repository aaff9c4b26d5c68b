"""Rows of a dataset dealt out among peers, for `Task.shard`: data of every peer's own, with a trusted server."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from troth.crypto import stream
from troth.training.errors import TaskError

# N rows

_TRIES = 100


def dirichlet(labels_N: ArrayLike, parts: int, alpha: float, seed: int = 0) -> tuple[NDArray[np.int64], ...]:
    """Rows of each part, class by class in shares that are drawn from Dirichlet(α): the smaller α, the fewer classes in a part.

    The usual way to make data heterogeneous (Yurochkin et al. 2019, arXiv:1905.12022). Every row is dealt once, and no part
    is empty.
    """
    of_each = np.asarray(labels_N)
    if parts < 1 or not 0 < alpha < np.inf:
        raise TaskError(f"`dirichlet` needs at least 1 part and an alpha above 0, got {parts} and {alpha}")
    for attempt in range(_TRIES):
        owners_N = _owners(of_each, parts, alpha, seed, attempt)
        dealt = tuple(np.flatnonzero(owners_N == part) for part in range(parts))
        if all(len(rows) for rows in dealt):
            return dealt
    raise TaskError(f"alpha {alpha:g} leaves one of {parts} parts of {len(of_each)} rows empty: choose a larger one")


def _owners(labels_N: NDArray[np.int64], parts: int, alpha: float, seed: int, attempt: int) -> NDArray[np.int64]:
    """Pólya's urn: a row goes to any part, with weight α for each, or to the part of an earlier row of its class."""
    owners_N = np.zeros(len(labels_N), dtype=np.int64)
    for label in np.unique(labels_N):
        draw = stream(seed, "dirichlet", attempt, int(label))
        rows = np.flatnonzero(labels_N == label)
        dealt: list[int] = []
        for drawn in draw.uniform(len(rows)):
            place = drawn * (parts * alpha + len(dealt))
            dealt.append(int(place / alpha) if place < parts * alpha else dealt[int(place - parts * alpha)])
        owners_N[rows[draw.permutation(len(rows))]] = np.minimum(dealt, parts - 1)  # rounding could give one more
    return owners_N
