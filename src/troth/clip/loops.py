"""How loops are compiled: without the interpreter's lock, kept on disk, and rounded as written unless said otherwise."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.extending import intrinsic
from numpy.typing import NDArray

# R rows, D coordinates, C coordinates of a strip, B bytes of signs for each coordinate, T terms of a place in a tree, or tensors
# of the model, L levels

F = TypeVar("F", bound=Callable[..., Any])

_POINTER: Any = numba.types.voidptr

# Sums may be regrouped and products fused, so that they fill a vector unit. NaN and infinity stay what they are.
REGROUPED = {"reassoc", "contract"}


def exact(function: F) -> F:
    """Compile a loop whose every operation is rounded once, in the order written: the same bits on every machine.

    LLVM fuses a product and a sum only where both carry the flag `contract`, and none is set here.
    """
    return _compile(function, fastmath=False)


def regrouped(function: F) -> F:
    """Compile a loop whose sums are right to a tolerance: their order depends on the processor, not on threads."""
    return _compile(function, fastmath=REGROUPED)


def _compile(function: F, fastmath: bool | set[str]) -> F:
    # NumPy's way to divide: by zero it gives an infinity, where Python would raise.
    options: dict[str, Any] = {"nogil": True, "fastmath": fastmath, "error_model": "numpy"}
    try:
        return cast(F, numba.njit(cache=True, **options)(function))
    except RuntimeError:  # no folder to keep it in can be written: every process compiles for itself
        return cast(F, numba.njit(**options)(function))


def _forget_outdated() -> None:
    """Remove compiled loops that are older than any source here: a loop is built into others, which numba does not track."""
    here = Path(__file__).parent
    newest = max(source.stat().st_mtime for source in here.glob("*.py"))
    for kept in here.glob("__pycache__/*.nbi"):
        with suppress(OSError):  # another process was faster, or the folder is not ours
            if kept.stat().st_mtime < newest:
                kept.unlink()


_forget_outdated()


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _pointer(_typing: Any, _address: Any) -> Any:
    """A pointer from an address."""

    def build(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(_POINTER))

    return _POINTER(numba.uintp), build


@exact
def numbers_at(address: int, size: int) -> NDArray[np.float32]:
    """The float32 numbers at an address. All input comes this way: rows may lie anywhere, be read-only or many, and one
    compiled loop takes them all."""
    numbers_D: NDArray[np.float32] = numba.carray(_pointer(np.uintp(address)), (size,), np.float32)
    return numbers_D


@exact
def bytes_at(address: int, size: int) -> NDArray[np.uint8]:
    """The bytes at an address."""
    raw: NDArray[np.uint8] = numba.carray(_pointer(np.uintp(address)), (size,), np.uint8)
    return raw


# Loops over the bits of float32 numbers, and sums of their squares in a fixed order.
#
# Slices are taken before the innermost loops: an index that cannot be negative is what lets the compiler fill a vector unit.


_MAGNITUDE = np.uint32(0x7FFFFFFF)
_EXPONENT = np.uint32(0x7F800000)
_LEAST_NORMAL = np.uint32(0x00800000)
_ONE = np.uint32(1)
_LANE_STRIP = 1024  # lanes at a time: they stay in the first cache


@exact
def odd_numbers(address: int, start: int, stop: int) -> tuple[bool, bool]:
    """Whether there is a subnormal, and whether there is an infinity or a NaN."""
    bits_C = numbers_at(address, stop)[start:].view(np.uint32)
    least, largest = np.uint32(0xFFFFFFFF), np.uint32(0)
    for i in range(len(bits_C)):
        magnitude = np.uint32(bits_C[i] & _MAGNITUDE)
        least = min(least, np.uint32(magnitude - _ONE))  # a zero becomes the largest number of all
        largest = max(largest, magnitude)
    return bool(least < _LEAST_NORMAL - _ONE), bool(largest >= _EXPONENT)


@exact
def flush(address: int, start: int, stop: int) -> None:
    """Set to zero, in place, every number without a bit in its exponent: subnormals, and −0 with them."""
    bits_C = numbers_at(address, stop)[start:].view(np.uint32)
    for i in range(len(bits_C)):
        bits = bits_C[i]
        bits_C[i] = bits if bits & _EXPONENT else np.uint32(0)


@exact
def lane_sums(address: int, start: int, stop: int, lanes: NDArray[np.float64]) -> None:
    """Add up squares in lanes, each from its first number on; lanes beyond the numbers are left as they are."""
    numbers_D = numbers_at(address, stop)[start:]
    size, width = len(numbers_D), len(lanes)
    for strip in range(0, min(width, size), _LANE_STRIP):
        first_C = numbers_D[strip : min(strip + _LANE_STRIP, width, size)]
        lanes_C = lanes[strip : strip + _LANE_STRIP]
        for i in range(len(first_C)):
            lanes_C[i] = np.float64(first_C[i]) * np.float64(first_C[i])
        for first in range(width, size, width):
            next_C = numbers_D[first + strip : min(first + strip + _LANE_STRIP, first + width, size)]
            for i in range(len(next_C)):
                lanes_C[i] += np.float64(next_C[i]) * np.float64(next_C[i])


@exact
def tree(terms: NDArray[np.float64], width: int) -> float:
    """Sum of the first `width` terms, the second half added to the first until one is left; they are used up."""
    while width > 1:
        half = (width + 1) // 2
        low, high = terms[: width - half], terms[half:width]
        for i in range(len(low)):
            low[i] += high[i]
        width = half
    return float(terms[0])


# Loops over rows of float32 whose sums are right to a tolerance; rows are given by their addresses.


_SQUARE_STRIP = 512  # coordinates whose squares are added up in a vector unit's lanes, before sums are added to sums
_FOLDED = 1 << 15  # coordinates after which tables are folded: a hundred terms in a place, whose sum is off by 10⁻¹⁴
_BYTE = 256


@regrouped
def squares(addresses_R: NDArray[np.uintp], start: int, stop: int, squares_R: NDArray[np.float64]) -> None:
    """Add squared lengths over coordinates `start` to `stop`."""
    for r in range(len(addresses_R)):
        row_D = numbers_at(addresses_R[r], stop)
        for first in range(start, stop, _SQUARE_STRIP):
            row_C = row_D[first : min(first + _SQUARE_STRIP, stop)]
            total = 0.0
            for c in range(len(row_C)):
                total += np.float64(row_C[c]) * np.float64(row_C[c])
            squares_R[r] += total


@regrouped
def differences(
    addresses_R: NDArray[np.uintp],
    center: int,
    start: int,
    stop: int,
    signs_CB: NDArray[np.uint8],
    sums_R2: NDArray[np.float64],
    products_RBK: NDArray[np.float64],
) -> None:
    """Over coordinates `start` to `stop`, add squared distances from the centre and squared lengths, and products with signs.

    Coordinates with the same byte have the same signs in eight rows of signs: they are added up first, in a table that
    stays in the first cache, and 256 sums get their signs.
    """
    center_D = numbers_at(center, stop)
    tables_BV = np.empty((signs_CB.shape[1], _BYTE))
    away_C = np.empty(_SQUARE_STRIP)
    for fold in range(start, stop, _FOLDED):
        end = min(fold + _FOLDED, stop)
        for r in range(len(addresses_R)):
            row_D = numbers_at(addresses_R[r], stop)
            tables_BV[:] = 0.0
            for first in range(fold, end, _SQUARE_STRIP):
                last = min(first + _SQUARE_STRIP, end)
                row_C, center_C = row_D[first:last], center_D[first:last]
                distance, length = 0.0, 0.0
                for c in range(len(row_C)):
                    number = np.float64(row_C[c])
                    away = number - np.float64(center_C[c])
                    away_C[c] = away
                    distance += away * away
                    length += number * number
                sums_R2[r, 0] += distance
                sums_R2[r, 1] += length
                _scatter(away_C, signs_CB[first - start : last - start], tables_BV)
            _fold(tables_BV, products_RBK[r])


@regrouped
def _scatter(away_C: NDArray[np.float64], signs_CB: NDArray[np.uint8], tables_BV: NDArray[np.float64]) -> None:
    """Add every difference to the places of its bytes, two tables at a time. All is read before anything is written: tables
    might overlap, for all that the compiler knows, and it would read twice."""
    for b in range(0, len(tables_BV), 2):
        low_V, high_V = tables_BV[b], tables_BV[b + 1]
        for c in range(len(signs_CB)):
            away, low, high = away_C[c], np.int64(signs_CB[c, b]), np.int64(signs_CB[c, b + 1])
            low_sum, high_sum = low_V[low] + away, high_V[high] + away
            low_V[low] = low_sum
            high_V[high] = high_sum


@regrouped
def _fold(tables_BV: NDArray[np.float64], products_BK: NDArray[np.float64]) -> None:
    """Give the 256 sums of every table their signs, bit by bit from the highest down; a set bit is −1. Tables are used up."""
    for b in range(len(tables_BV)):
        table_V, half = tables_BV[b], _BYTE // 2
        for bit in range(7, -1, -1):
            low_V, high_V, product = table_V[:half], table_V[half : 2 * half], 0.0
            for v in range(half):
                product += low_V[v] - high_V[v]
                low_V[v] += high_V[v]
            products_BK[b, bit] += product
            half //= 2


# Loops of CenteredClip's solver: its two reads of the rows. Rows are given by their addresses, and lie anywhere.


_RUN = 256  # products that are added up in the lanes of a vector unit, before sums are added to sums
_EXACT_STRIP = 2048
TILE = 4  # rows of a tile


@regrouped
def gram(addresses_R: NDArray[np.uintp], center: int, start: int, stop: int, gram_RR: NDArray[np.float64]) -> None:
    """Add `⟨x_i − r, x_j − r⟩` over coordinates `start` to `stop` on and above the diagonal."""
    center_D = numbers_at(center, stop)
    around_RC, wide_C = np.zeros((len(gram_RR), _RUN)), np.zeros(_RUN)
    for first in range(start, stop, _RUN):
        center_C = center_D[first : min(first + _RUN, stop)]
        if len(center_C) < _RUN:
            around_RC[:] = 0.0
        for c in range(len(center_C)):
            wide_C[c] = center_C[c]
        for r in range(len(addresses_R)):
            row_C, around_C = numbers_at(addresses_R[r], stop)[first : first + _RUN], around_RC[r]
            for c in range(len(row_C)):
                around_C[c] = np.float64(row_C[c]) - wide_C[c]
        for i in range(0, len(gram_RR), TILE):
            _corner(around_RC, i, gram_RR)
            for j in range(i + TILE, len(gram_RR), TILE):
                _tile(around_RC, i, j, gram_RR)


@regrouped
def _corner(around_RC: NDArray[np.float64], i: int, gram_RR: NDArray[np.float64]) -> None:
    """The ten products of four rows with each other."""
    a0, a1, a2, a3 = around_RC[i], around_RC[i + 1], around_RC[i + 2], around_RC[i + 3]
    s00 = s01 = s02 = s03 = s11 = s12 = s13 = s22 = s23 = s33 = 0.0
    for c in range(_RUN):
        x0, x1, x2, x3 = a0[c], a1[c], a2[c], a3[c]
        s00 += x0 * x0
        s01 += x0 * x1
        s02 += x0 * x2
        s03 += x0 * x3
        s11 += x1 * x1
        s12 += x1 * x2
        s13 += x1 * x3
        s22 += x2 * x2
        s23 += x2 * x3
        s33 += x3 * x3
    _add(gram_RR[i], i, s00, s01, s02, s03)
    _add(gram_RR[i + 1], i, 0.0, s11, s12, s13)
    _add(gram_RR[i + 2], i, 0.0, 0.0, s22, s23)
    _add(gram_RR[i + 3], i, 0.0, 0.0, 0.0, s33)


@regrouped
def _tile(around_RC: NDArray[np.float64], i: int, j: int, gram_RR: NDArray[np.float64]) -> None:
    """Sixteen products of rows side by side: every number that is read is used four times."""
    a0, a1, a2, a3 = around_RC[i], around_RC[i + 1], around_RC[i + 2], around_RC[i + 3]
    b0, b1, b2, b3 = around_RC[j], around_RC[j + 1], around_RC[j + 2], around_RC[j + 3]
    s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = 0.0
    s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = 0.0
    for c in range(_RUN):
        x0, x1, x2, x3 = a0[c], a1[c], a2[c], a3[c]
        y0, y1, y2, y3 = b0[c], b1[c], b2[c], b3[c]
        s00 += x0 * y0
        s01 += x0 * y1
        s02 += x0 * y2
        s03 += x0 * y3
        s10 += x1 * y0
        s11 += x1 * y1
        s12 += x1 * y2
        s13 += x1 * y3
        s20 += x2 * y0
        s21 += x2 * y1
        s22 += x2 * y2
        s23 += x2 * y3
        s30 += x3 * y0
        s31 += x3 * y1
        s32 += x3 * y2
        s33 += x3 * y3
    _add(gram_RR[i], j, s00, s01, s02, s03)
    _add(gram_RR[i + 1], j, s10, s11, s12, s13)
    _add(gram_RR[i + 2], j, s20, s21, s22, s23)
    _add(gram_RR[i + 3], j, s30, s31, s32, s33)


@regrouped
def _add(sums_R: NDArray[np.float64], j: int, s0: float, s1: float, s2: float, s3: float) -> None:
    sums_R[j] += s0
    sums_R[j + 1] += s1
    sums_R[j + 2] += s2
    sums_R[j + 3] += s3


@regrouped
def combine(
    addresses_R: NDArray[np.uintp],
    coefficients_R: NDArray[np.float64],
    rest: float,
    center: int,
    start: int,
    stop: int,
    value: int,
) -> tuple[float, float, float]:
    """Write `Σ c_i x_i + rest·r`, rounded and flushed; give the squares of what rounding lost, of the value and of r."""
    center_D, value_D = numbers_at(center, stop), numbers_at(value, stop)
    exact_C, lost, length, reach = np.empty(_EXACT_STRIP), 0.0, 0.0, 0.0
    for first in range(start, stop, _EXACT_STRIP):
        last = min(first + _EXACT_STRIP, stop)
        center_C, value_C = center_D[first:last], value_D[first:last]
        for c in range(len(center_C)):
            exact_C[c] = rest * np.float64(center_C[c])
        for r in range(0, len(addresses_R), TILE):
            _add_rows(addresses_R[r : r + TILE], coefficients_R[r : r + TILE], first, last, exact_C)
        for c in range(len(center_C)):
            value_C[c] = np.float32(exact_C[c])
        flush(value, first, last)  # some machines flush subnormals in reading, so all do
        sums = _squares(exact_C, value_C, center_C)
        lost, length, reach = lost + sums[0], length + sums[1], reach + sums[2]
    return lost, length, reach


@regrouped
def _squares(
    exact_C: NDArray[np.float64], value_C: NDArray[np.float32], center_C: NDArray[np.float32]
) -> tuple[float, float, float]:
    lost, length, reach = 0.0, 0.0, 0.0
    for c in range(len(center_C)):
        rounded, center = np.float64(value_C[c]), np.float64(center_C[c])  # `float` would leave them float32
        lost += (exact_C[c] - rounded) * (exact_C[c] - rounded)
        length += rounded * rounded
        reach += center * center
    return lost, length, reach


@regrouped
def _add_rows(
    addresses_R: NDArray[np.uintp],
    coefficients_R: NDArray[np.float64],
    first: int,
    last: int,
    exact_C: NDArray[np.float64],
) -> None:
    """Add multiples of one to four rows, four in one go."""
    if len(addresses_R) == TILE:
        a, b = numbers_at(addresses_R[0], last)[first:], numbers_at(addresses_R[1], last)[first:]
        c, d = numbers_at(addresses_R[2], last)[first:], numbers_at(addresses_R[3], last)[first:]
        of_a, of_b, of_c, of_d = coefficients_R[0], coefficients_R[1], coefficients_R[2], coefficients_R[3]
        for i in range(last - first):
            near = of_a * np.float64(a[i]) + of_b * np.float64(b[i])
            far = of_c * np.float64(c[i]) + of_d * np.float64(d[i])
            exact_C[i] += near + far
    else:
        for r in range(len(addresses_R)):
            a, of_a = numbers_at(addresses_R[r], last)[first:], coefficients_R[r]
            for i in range(last - first):
                exact_C[i] += of_a * np.float64(a[i])


# Loops of jurors: distances from a centre and the sum of clipped pulls, as trees over all coordinates that are never in memory.
#
# `tree_sum` adds the second half of D terms to the first until one is left. Its place i after L halvings is a tree over 2^L
# terms at fixed distances, so a strip of places is built from 2^L strips of terms: neighbours are added up as soon as both
# are there.


@exact
def distance_trees(
    addresses_R: NDArray[np.uintp],
    center: int,
    size: int,
    starts_T: NDArray[np.int64],
    counts_T: NDArray[np.int64],
    first: int,
    sums_RC: NDArray[np.float64],
) -> None:
    """Places `first` and on, as many as `sums_RC` is wide, of the trees of `(x − v)²`."""
    center_D = numbers_at(center, size)
    stack_LC = np.empty((65, sums_RC.shape[1]))
    for r in range(len(addresses_R)):
        row_D = numbers_at(addresses_R[r], size)
        depth = 0
        for t in range(len(starts_T)):
            _add_squares(row_D, center_D, starts_T[t] + first, counts_T[t] - first, stack_LC[depth])
            depth = _merge(stack_LC, depth, t)
        _copy(stack_LC[0], sums_RC[r])


@exact
def _add_squares(
    row_D: NDArray[np.float32], center_D: NDArray[np.float32], place: int, count: int, terms_C: NDArray[np.float64]
) -> None:
    """One term of each place; 0 where there is none: squares are not negative, and adding 0 changes none."""
    count = _within(count, len(terms_C))
    row_C, center_C = row_D[place : place + count], center_D[place : place + count]
    for c in range(len(row_C)):
        away = np.float64(row_C[c]) - np.float64(center_C[c])
        terms_C[c] = away * away
    terms_C[count:] = 0.0


@exact
def residual_tree(
    addresses_R: NDArray[np.uintp],
    scales_R: NDArray[np.float64],
    center: int,
    size: int,
    starts_T: NDArray[np.int64],
    counts_T: NDArray[np.int64],
    first: int,
    sums_C: NDArray[np.float64],
) -> None:
    """Places `first` and on, as many as `sums_C` is long, of the tree of `(Σ_i (x_i − v)·scale_i)²`."""
    center_D = numbers_at(center, size)
    stack_LC, pulls = np.empty((65, len(sums_C))), np.empty(len(sums_C))
    depth = 0
    for t in range(len(starts_T)):
        terms_C = stack_LC[depth]
        place, count = starts_T[t] + first, _within(counts_T[t] - first, len(terms_C))
        center_C, pull_C = center_D[place : place + count], pulls[:count]
        pull_C[:] = 0.0
        for r in range(len(addresses_R)):
            row_C, scale = numbers_at(addresses_R[r], size)[place : place + count], scales_R[r]
            for c in range(len(center_C)):
                pull_C[c] += (np.float64(row_C[c]) - np.float64(center_C[c])) * scale
        for c in range(len(center_C)):
            terms_C[c] = pull_C[c] * pull_C[c]
        terms_C[count:] = 0.0
        depth = _merge(stack_LC, depth, t)
    _copy(stack_LC[0], sums_C)


@exact
def _copy(from_C: NDArray[np.float64], to_C: NDArray[np.float64]) -> None:
    """One by one: assigning a slice compiles the text of an error for slices of other lengths, which takes seconds."""
    for c in range(len(to_C)):
        to_C[c] = from_C[c]


@exact
def _within(count: int, most: int) -> int:
    return max(0, min(count, most))


@exact
def _merge(stack_LC: NDArray[np.float64], depth: int, t: int) -> int:
    """Add up neighbours after term t has come to lie on the stack, as often as it completes a pair; give the next free place."""
    done = t + 1
    while done % 2 == 0:
        low_C, high_C = stack_LC[depth - 1], stack_LC[depth]
        for c in range(len(low_C)):
            low_C[c] += high_C[c]
        depth -= 1
        done //= 2
    return depth + 1


# Loops of optimizers in float32: every operation rounded once, alone.


@exact
def sgd(
    addresses: NDArray[np.uintp],
    start: int,
    stop: int,
    momentum: np.float32,
    weight_decay: np.float32,
    decays: bool,
    nesterov: bool,
) -> None:
    """The step of `SGD`, before the rate; without weight decay nothing is added, for 0·x is not 0 if x is infinite.

    Addresses are of parameters, gradient and buffer, and of the step and the next buffer.
    """
    parameters_D, gradient_D = numbers_at(addresses[0], stop)[start:], numbers_at(addresses[1], stop)[start:]
    buffer_D, next_buffer_D = numbers_at(addresses[2], stop)[start:], numbers_at(addresses[4], stop)[start:]
    step_D = numbers_at(addresses[3], stop)[start:]
    for i in range(len(parameters_D)):
        pull = gradient_D[i]
        if decays:
            pull = pull + parameters_D[i] * weight_decay
        buffer = buffer_D[i] * momentum + pull
        next_buffer_D[i] = buffer
        step_D[i] = buffer * momentum + pull if nesterov else buffer


@exact
def adamw(
    addresses: NDArray[np.uintp],
    start: int,
    stop: int,
    beta1: np.float32,
    rest1: np.float32,
    beta2: np.float32,
    rest2: np.float32,
    scale1: np.float32,
    scale2: np.float32,
    epsilon: np.float32,
    stops_T: NDArray[np.int64],
    floors_T: NDArray[np.float32],
) -> None:
    """The step of `AdamW`, before the rate: `rest` is 1 − β, `scale` is 1/(1 − βᵗ). Each tensor has its own floor.

    Addresses are of parameters, gradient, mean and square, and of the step, the next mean and the next square.
    """
    first = start
    for tensor in range(len(stops_T)):
        last, floor = min(stop, stops_T[tensor]), floors_T[tensor]
        if last <= first:
            continue
        gradient_D, step_D = numbers_at(addresses[1], last)[first:], numbers_at(addresses[4], last)[first:]
        mean_D, next_mean_D = numbers_at(addresses[2], last)[first:], numbers_at(addresses[5], last)[first:]
        square_D, next_square_D = numbers_at(addresses[3], last)[first:], numbers_at(addresses[6], last)[first:]
        for i in range(len(gradient_D)):
            gradient = gradient_D[i]
            mean = mean_D[i] * beta1 + gradient * rest1
            square = square_D[i] * beta2 + (gradient * gradient) * rest2
            next_mean_D[i] = mean
            next_square_D[i] = square
            root = np.sqrt(square * scale2)
            # A NaN stays one, as in PyTorch's clamp.
            step_D[i] = (mean * scale1) / ((floor if root < floor else root) + epsilon)
        first = last


@exact
def move(parameters: int, moved: int, start: int, stop: int, kept: np.float32, decays: bool, rate: np.float32) -> None:
    """Turn a step into the next parameters, in place: `kept·x − rate·step`."""
    parameters_D, moved_D = numbers_at(parameters, stop)[start:], numbers_at(moved, stop)[start:]
    for i in range(len(moved_D)):
        before = parameters_D[i] * kept if decays else parameters_D[i]
        moved_D[i] = before - moved_D[i] * rate
