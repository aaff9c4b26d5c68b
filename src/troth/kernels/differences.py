"""Differences of rows from a centre: their squares, and their products with random signs, in one pass."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from troth.kernels.rows import Array, Rows, address
from troth.kernels.threads import spread

# S spans of coordinates, P rows, D coordinates, K projections, B bytes of signs for each coordinate

_CHUNK = 1 << 17  # coordinates of one row; of several rows fewer, and a quarter at least

# Bytes of the signs of coordinates from the first to the second argument: D×B, bit k of the eight or more is row k, set is −1.
Signs = Callable[[int, int], NDArray[np.uint8]]


class Differences(NamedTuple):
    """Of every span and row."""

    squares_SP: NDArray[np.float64]  # squared distance from the centre
    lengths_SP: NDArray[np.float64]  # squared length of the row itself
    products_SPK: NDArray[np.float64]  # products of the difference with the signs


def differences(rows: Sequence[Array] | Array, center_D: Array, bounds: Sequence[int], signs: Signs) -> Differences:
    """Compare rows with a centre, span by span; `signs` counts coordinates as `bounds` does."""
    from troth.kernels.loops import rows as loops

    kept, center = Rows(rows), np.require(center_D, np.float32, ["C", "A"])
    assert 0 <= bounds[0] <= bounds[-1] <= kept.size == len(center), "spans lie within rows as long as the centre"
    spans, places = _chunks(bounds, len(kept))

    def compare(chunk: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        start, stop = places[chunk]
        signs_CB = signs(start, stop)
        sums_P2, products_PBK = np.zeros((len(kept), 2)), np.zeros((len(kept), signs_CB.shape[1], 8))
        loops.differences(kept.addresses_R, address(center), start, stop, signs_CB, sums_P2, products_PBK)
        return sums_P2, products_PBK.reshape(len(kept), -1)

    found = spread(compare, len(places))
    sums_SP2 = _by_span([sums_P2 for sums_P2, _ in found], spans, len(bounds) - 1)
    products_SPK = _by_span([products_PK for _, products_PK in found], spans, len(bounds) - 1)
    return Differences(sums_SP2[..., 0], sums_SP2[..., 1], products_SPK)


def squared_lengths(rows: Sequence[Array] | Array, bounds: Sequence[int]) -> NDArray[np.float64]:
    """S×P squared lengths of rows, span by span."""
    from troth.kernels.loops import rows as loops

    kept = Rows(rows)
    assert 0 <= bounds[0] <= bounds[-1] <= kept.size, "spans lie within the rows"
    spans, places = _chunks(bounds, len(kept))

    def add_up(chunk: int) -> NDArray[np.float64]:
        squares_P = np.zeros(len(kept))
        loops.squares(kept.addresses_R, *places[chunk], squares_P)
        return squares_P

    return _by_span(spread(add_up, len(places)), spans, len(bounds) - 1)


def _chunks(bounds: Sequence[int], rows: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Chunks of all spans, each with its span."""
    spans, places, width = [], [], _CHUNK // max(1, min(rows, 4))
    for span, (start, stop) in enumerate(pairwise(bounds)):
        assert start <= stop, "bounds ascend"
        for first in range(start, stop, width):
            spans.append(span)
            places.append((first, min(first + width, stop)))
    return spans, places


def _by_span(found: list[NDArray[np.float64]], spans: list[int], count: int) -> NDArray[np.float64]:
    """Add up what was found in the chunks of each span, in their order."""
    sums = np.zeros((count, *found[0].shape))
    for span, some in zip(spans, found, strict=True):
        sums[span] += some
    return sums
