"""Whether vectors go through compiled loops, and these loops chunk by chunk on the cores given to this peer."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.processes import in_turns

# P, R rows, D coordinates, S spans of them, K projections, B bytes of signs for each coordinate, T terms of a place in a tree,
# or tensors of the model

# Numbers; fewer take NumPy a millisecond or two, and numba takes half a second to load, seconds the first time.
LARGE = 1 << 18


def compiled(count: int) -> bool:
    """Tell whether so many numbers are enough for compiled loops, and there are such."""
    return count >= LARGE and _numba()


def takes(first: NDArray[Any] | Tensor, *others: NDArray[Any] | Tensor) -> bool:
    """Tell whether compiled loops take vectors, or rows side by side: the first is large, all are float32 on the CPU."""
    return compiled(math.prod(first.shape)) and all(
        vector.dtype == torch.float32 and vector.device.type == "cpu"
        if isinstance(vector, Tensor)
        else vector.dtype == np.float32
        for vector in (first, *others)
    )


@cache
def _numba() -> bool:
    try:
        import_module("troth.clip.loops")
    except ImportError:
        return False
    return True


T = TypeVar("T")


def spread(work: Callable[[int], T], count: int) -> list[T]:
    """`[work(0), …, work(count − 1)]`, computed by as many threads as PyTorch uses.

    Chunks are cut without regard to threads, so bits do not depend on them.
    """
    return in_turns(work, range(count), min(torch.get_num_threads(), count))


# Rows of float32 where they lie: kept alive here, and given to compiled loops as addresses.


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


# Finite checks, flushing and the exact norm of one vector of float32.


_FLUSHED_AT_ONCE = 1 << 18


def odd_numbers(numbers_D: Array) -> tuple[bool, bool]:
    """Whether there is a subnormal, and whether there is an infinity or a NaN; by their bits."""
    from troth.clip import loops

    ready_D = np.require(numbers_D, np.float32, ["C", "A"])
    place, size = address(ready_D), len(ready_D)

    def look(chunk: int) -> tuple[bool, bool]:
        return loops.odd_numbers(place, chunk * _FLUSHED_AT_ONCE, min((chunk + 1) * _FLUSHED_AT_ONCE, size))

    found = spread(look, -(-size // _FLUSHED_AT_ONCE))
    return any(subnormal for subnormal, _ in found), any(endless for _, endless in found)


def flush(numbers_D: Array) -> None:
    """Replace every number below 2⁻¹²⁶ by 0, in place."""
    from troth.clip import loops

    assert numbers_D.dtype == np.float32, f"only float32 is flushed, not {numbers_D.dtype}"
    assert numbers_D.ndim == 1, "one vector"
    assert numbers_D.flags.carray, "written in place, so as it lies: contiguous, aligned and writable"
    place, size = address(numbers_D), len(numbers_D)
    spread(
        lambda chunk: loops.flush(place, chunk * _FLUSHED_AT_ONCE, min((chunk + 1) * _FLUSHED_AT_ONCE, size)),
        -(-size // _FLUSHED_AT_ONCE),
    )


def exact_norm(numbers_D: Array, lanes: int, depth: int, *, only_ordinary: bool = False) -> float | None:
    """Length of a vector: squares in lanes side by side, the lanes as a tree, the trees' sums at once.

    With `only_ordinary`, None if it holds a NaN, an infinity or a subnormal: seen while the numbers are in the cache.
    """
    from troth.clip import loops

    ready_D = np.require(numbers_D, np.float32, ["C", "A"])
    place, size, block = address(ready_D), len(ready_D), lanes * depth

    def add_up(chunk: int) -> float | None:
        start, stop = chunk * block, min((chunk + 1) * block, size)
        if only_ordinary and any(loops.odd_numbers(place, start, stop)):
            return None
        sums = np.empty(lanes)
        loops.lane_sums(place, start, stop, sums)
        return loops.tree(sums, min(lanes, stop - start))

    found = spread(add_up, -(-size // block))
    sums = [number for number in found if number is not None]
    return math.sqrt(math.fsum(sums)) if len(sums) == len(found) else None


# Differences of rows from a centre: their squares, and their products with random signs, in one pass.


_ROW_CHUNK = 1 << 17  # coordinates of one row; of several rows fewer, and a quarter at least

# Bytes of the signs of coordinates from the first to the second argument: D×B, bit k of the eight or more is row k, set is −1.
Signs = Callable[[int, int], NDArray[np.uint8]]


class Differences(NamedTuple):
    """Of every span and row."""

    squares_SP: NDArray[np.float64]  # squared distance from the centre
    lengths_SP: NDArray[np.float64]  # squared length of the row itself
    products_SPK: NDArray[np.float64]  # products of the difference with the signs


def differences(rows: Sequence[Array] | Array, center_D: Array, bounds: Sequence[int], signs: Signs) -> Differences:
    """Compare rows with a centre, span by span; `signs` counts coordinates as `bounds` does."""
    from troth.clip import loops

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
    from troth.clip import loops

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
    spans, places, width = [], [], _ROW_CHUNK // max(1, min(rows, 4))
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


# The two reads of CenteredClip's solver.


_EXACT_CHUNK = 1 << 13  # coordinates: 32 runs of products


def gram(rows: Sequence[Array] | Array, center_D: Array) -> NDArray[np.float64]:
    """`⟨x_i − r, x_j − r⟩` in float64, the upper triangle: runs one after the other in a chunk, chunks as a tree."""
    from troth.clip import loops

    kept, center = Rows(rows), _as_long(center_D, rows)
    padded = -(-len(kept) // loops.TILE) * loops.TILE

    def part(chunk: int) -> NDArray[np.float64]:
        gram_RR = np.zeros((padded, padded))
        start, stop = chunk * _EXACT_CHUNK, min((chunk + 1) * _EXACT_CHUNK, kept.size)
        loops.gram(kept.addresses_R, address(center), start, stop, gram_RR)
        return gram_RR

    parts = spread(part, -(-kept.size // _EXACT_CHUNK))
    while len(parts) > 1:
        parts = [sum(parts[k + 1 : k + 2], parts[k]) for k in range(0, len(parts), 2)]
    return np.triu(parts[0][: len(kept), : len(kept)])


def combine(
    rows: Sequence[Array] | Array, coefficients_R: NDArray[np.float64], center_D: Array, rest: float
) -> tuple[NDArray[np.float32], float, float, float]:
    """`Σ c_i x_i + rest·r`, rounded to float32 and flushed; with the squares of what rounding lost, of the value and of r."""
    from troth.clip import loops

    kept, center = Rows(rows), _as_long(center_D, rows)
    value_D = np.empty(kept.size, np.float32)

    def part(chunk: int) -> tuple[float, float, float]:
        start, stop = chunk * _EXACT_CHUNK, min((chunk + 1) * _EXACT_CHUNK, kept.size)
        place, value = address(center), address(value_D)
        return loops.combine(kept.addresses_R, coefficients_R, rest, place, start, stop, value)

    lost, length, reach = np.add.reduce(spread(part, -(-kept.size // _EXACT_CHUNK))).tolist()
    return value_D, lost, length, reach


def _as_long(center_D: Array, rows: Sequence[Array] | Array) -> Array:
    assert center_D.shape == rows[0].shape, "loops read as many numbers from the centre as from a row"
    return np.require(center_D, np.float32, ["C", "A"])


# Distances of rows from a centre and the length of their clipped pulls, to the last bit as trees over all coordinates.


_STRIP = 1024  # places at a time
_PLACES = 1 << 13  # halving ends below so many


def pulls(rows: Sequence[Array] | Array, center_D: Array, tau: float) -> tuple[float, list[float]]:
    """`‖Σ_i (x_i − v)·τ/max(‖x_i − v‖, τ)‖` and all `‖x_i − v‖`, the rows in their order."""
    from troth.clip import loops

    kept, center = Rows(rows), np.require(center_D, np.float32, ["C", "A"])
    assert len(center) == kept.size, "loops read as many numbers from the centre as from a row"
    width, starts_T, counts_T = tree_terms(kept.size)
    strips = -(-width // _STRIP)

    def distances(strip: int) -> NDArray[np.float64]:
        first = strip * _STRIP
        sums_RC = np.empty((len(kept), min(_STRIP, width - first)))
        loops.distance_trees(kept.addresses_R, address(center), kept.size, starts_T, counts_T, first, sums_RC)
        return sums_RC

    def residual(strip: int) -> NDArray[np.float64]:
        first = strip * _STRIP
        sums_C = np.empty(min(_STRIP, width - first))
        loops.residual_tree(kept.addresses_R, scales_R, address(center), kept.size, starts_T, counts_T, first, sums_C)
        return sums_C

    sums_RT = np.concatenate(spread(distances, strips), axis=1)
    norms = [float(np.sqrt(loops.tree(sums_T, width))) for sums_T in sums_RT]
    scales_R = np.array([tau / max(norm, tau) for norm in norms])
    return float(np.sqrt(loops.tree(np.concatenate(spread(residual, strips)), width))), norms


def tree_terms(size: int) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """How many places are left after halving `size` terms to fewer than `_PLACES`, and the terms of each.

    Place i is the tree over terms `starts[t] + i`, of which those with `i < counts[t]` exist: where a number of terms is odd, the
    last of the first half has no partner.
    """
    widths = [size]
    while widths[-1] >= _PLACES:
        widths.append((widths[-1] + 1) // 2)
    number_T = np.arange(1 << (len(widths) - 1))
    starts_T, counts_T = np.zeros_like(number_T), np.full_like(number_T, widths[-1])
    for level in range(len(widths) - 1, 0, -1):
        second_T = (number_T >> (level - 1)) & 1 == 1  # this term comes from the half that is added to the other
        present_T = widths[level - 1] - widths[level] - starts_T
        counts_T = np.where(second_T, np.minimum(counts_T, present_T), counts_T)
        starts_T = np.where(second_T, starts_T + widths[level], starts_T)
    return widths[-1], starts_T, counts_T


# Optimizer steps in one pass over parameters, gradient and state.
#
# A step's length is added up beside it, while its numbers are in the cache, as `exact_norm` adds: `shape` is its lanes and
# depth.


def sgd(
    parameters_D: Tensor,
    gradient_D: Tensor,
    buffer_D: Tensor,
    rate: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
    shape: tuple[int, int],
) -> tuple[Tensor, Tensor, float]:
    """The next parameters and momentum, and the step's length. Scalars are rounded to float32 once, as PyTorch does."""
    from troth.clip import loops

    ready = _ready(parameters_D, gradient_D, buffer_D)
    after = tuple(torch.empty_like(ready[0]) for _ in range(2))
    places = _places(ready, after)
    share, decay, speed = np.float32(momentum), np.float32(weight_decay), np.float32(rate)

    def step(start: int, stop: int) -> None:
        loops.sgd(places, start, stop, share, decay, weight_decay != 0, nesterov)

    def move(start: int, stop: int) -> None:
        loops.move(places[0], places[3], start, stop, np.float32(1), False, speed)

    return after[0], after[1], _in_blocks(step, move, places[3], len(parameters_D), shape)


def adamw(
    parameters_D: Tensor,
    gradient_D: Tensor,
    mean_D: Tensor,
    square_D: Tensor,
    scalars: tuple[float, ...],
    floors: tuple[NDArray[np.int64], NDArray[np.float32]],
    shape: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor, float]:
    """The next parameters, mean and mean square, and the step's length. `scalars` are β₁, 1 − β₁, β₂, 1 − β₂, 1/(1 − β₁ᵗ),
    1/(1 − β₂ᵗ), ε, 1 − rate·weight_decay and the rate; each is rounded to float32 once. `floors`: where each tensor of the
    model stops, and the floor of its denominators."""
    from troth.clip import loops

    ready = _ready(parameters_D, gradient_D, mean_D, square_D)
    after = tuple(torch.empty_like(ready[0]) for _ in range(3))
    places = _places(ready, after)
    beta1, rest1, beta2, rest2, scale1, scale2, epsilon, kept, rate = (np.float32(scalar) for scalar in scalars)
    stops_T, floors_T = floors

    def step(start: int, stop: int) -> None:
        loops.adamw(places, start, stop, beta1, rest1, beta2, rest2, scale1, scale2, epsilon, stops_T, floors_T)

    def move(start: int, stop: int) -> None:
        loops.move(places[0], places[4], start, stop, kept, True, rate)

    return after[0], after[1], after[2], _in_blocks(step, move, places[4], len(parameters_D), shape)


def _in_blocks(
    step: Callable[[int, int], None],
    move: Callable[[int, int], None],
    place: int,
    size: int,
    shape: tuple[int, int],
) -> float:
    """Make a step block by block, each added up before it moves anything. Returns its length."""
    from troth.clip import loops

    lanes, block = shape[0], shape[0] * shape[1]

    def both(chunk: int) -> float:
        start, stop = chunk * block, min((chunk + 1) * block, size)
        step(start, stop)
        sums = np.empty(lanes)
        loops.lane_sums(place, start, stop, sums)
        move(start, stop)
        return loops.tree(sums, min(lanes, stop - start))

    return math.sqrt(math.fsum(spread(both, -(-size // block))))


def _places(ready: tuple[Tensor, ...], after: tuple[Tensor, ...]) -> NDArray[np.uintp]:
    return np.array([vector_D.data_ptr() for vector_D in (*ready, *after)], dtype=np.uintp)


def _ready(*vectors: Tensor) -> tuple[Tensor, ...]:
    """The vectors as loops read them; these hold their memory until the loops are done."""
    assert all(vector_D.shape == (len(vectors[0]),) for vector_D in vectors), "loops read as many numbers from each"
    assert all(vector_D.dtype == torch.float32 and not vector_D.is_cuda for vector_D in vectors), "loops read float32"
    return tuple(vector_D.detach().contiguous() for vector_D in vectors)


# Compile everything before a run begins: else the first step of a machine would wait for it, and others for the machine.


def prepare(count: int) -> None:
    """Load all loops, if vectors of so many numbers go through them. Some seconds once on a machine, half of one afterwards."""
    if compiled(count):
        with one_at_a_time():
            _load_all()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Sixteen peers that start together on a machine: one compiles, and the others find what it has written."""
    with ExitStack() as stack:
        with suppress(OSError, ImportError):  # nothing can be written, or no such locks: each compiles for itself
            import fcntl

            lock = stack.enter_context(open(Path(__file__).parent / "__pycache__/preparing.lock", "a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@cache
def _load_all() -> None:
    row_D = np.ones(1, np.float32)
    odd_numbers(row_D)
    flush(row_D)
    exact_norm(row_D, 1, 1)
    squared_lengths([row_D], (0, 1))
    differences([row_D], row_D, (0, 1), lambda start, stop: np.zeros((stop - start, 2), np.uint8))
    gram([row_D], row_D)
    combine([row_D], np.ones(1), row_D, 0.0)
    pulls([row_D], row_D, 1.0)
    vector_D = torch.ones(1)
    sgd(vector_D, vector_D, vector_D, 1.0, 0.9, 0.0, True, (1, 1))
    floors = np.ones(1, np.int64), np.ones(1, np.float32)
    adamw(vector_D, vector_D, vector_D, vector_D, (0.5,) * 9, floors, (1, 1))
