"""One pass over vectors on a GPU, written in Triton, which comes with PyTorch for CUDA.

Imported only where a tensor lies on a GPU; `on_device` holds the same in PyTorch's operations, and is what this is held to.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

# S spans, B blocks of a span, R rows, D coordinates, K signs

_WIDTH = 256  # coordinates at a time …
_TIMES = 16  # … and how often in one block
_SIGNS = 16  # bits of a word
_SUMS = _SIGNS + 2  # and the squares of the distance and of the row


def on(device: torch.device) -> AbstractContextManager[object]:
    """Launch what is inside on this device; most often it is the one in use, and nothing has to be changed."""
    used = device.type != "cuda" or device.index == torch.cuda.current_device()
    return nullcontext() if used else torch.cuda.device(device)


@triton.jit  # type: ignore[untyped-decorator]
def _differences(  # type: ignore[no-untyped-def]
    rows, center, words, bounds, sums, row_stride, blocks, width: tl.constexpr, times: tl.constexpr
):
    """Sums of one block of one span of one row: sixteen signed sums, squared distance and squared length."""
    span, block, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    stop = tl.load(bounds + span + 1)
    first = tl.load(bounds + span) + block * (width * times)
    at_sum = sums + ((span * blocks + block) * tl.num_programs(2) + row) * 18
    lane, bits = tl.arange(0, width), tl.arange(0, 16)
    signed = tl.zeros([width, 16], tl.float64)
    squares = tl.zeros([width], tl.float64)
    lengths = tl.zeros([width], tl.float64)
    for turn in range(times):
        at = first + turn * width + lane
        inside = at < stop
        number = tl.load(rows + row * row_stride + at, mask=inside, other=0.0).to(tl.float64)
        away = number - tl.load(center + at, mask=inside, other=0.0).to(tl.float64)
        word = tl.load(words + at, mask=inside, other=0).to(tl.int32)
        lengths += number * number
        squares += away * away
        minus = ((word[:, None] >> bits[None, :]) & 1) == 1
        signed += tl.where(minus, -away[:, None], away[:, None])
    tl.store(at_sum + bits, tl.sum(signed, 0))
    tl.store(at_sum + 16, tl.sum(squares, 0))
    tl.store(at_sum + 17, tl.sum(lengths, 0))


def differences(rows_RD: Tensor, center_D: Tensor, words_D: Tensor, bounds_S: Tensor, longest: int) -> Tensor:
    """S×R×18 float64: products with sixteen signs, squared distances and squared lengths, span by span.

    `words_D` holds sixteen bits for each coordinate, `bounds_S` the S + 1 bounds; `longest` is the longest span's length.
    """
    spans, blocks = len(bounds_S) - 1, -(-longest // (_WIDTH * _TIMES))
    sums_SBRK = torch.empty(spans, blocks, len(rows_RD), _SUMS, dtype=torch.float64, device=rows_RD.device)
    with on(rows_RD.device):
        _differences[(spans, blocks, len(rows_RD))](
            rows_RD, center_D, words_D, bounds_S, sums_SBRK, rows_RD.stride(0), blocks, width=_WIDTH, times=_TIMES
        )
    return sums_SBRK.sum(dim=1)


_COLUMNS = 64  # of a tile of the Gram matrix
_RUN = 2  # tiles whose products are added up one after the other …
_MOST_RUNS = 64  # … and such runs in one block: a sum takes in 192 terms at most before sums are added in pairs
_BLOCKS = 1056  # of a shorter vector at least: eight for each processor of a large GPU


@triton.jit  # type: ignore[untyped-decorator]
def _gram(  # type: ignore[no-untyped-def]
    rows, center, sums, count, size, row_stride, runs, peers: tl.constexpr, width: tl.constexpr, run: tl.constexpr
):
    """Inner products of all pairs of rows around the centre, over one block of coordinates, by the units for matrices."""
    block = tl.program_id(0)
    row, lane = tl.arange(0, peers), tl.arange(0, width)
    products = tl.zeros([peers, peers], tl.float64)
    for one in range(runs):
        some = tl.zeros([peers, peers], tl.float64)
        for turn in range(run):
            at = ((block * runs + one) * run + turn) * width + lane
            inside = (row[:, None] < count) & (at[None, :] < size)
            number = tl.load(rows + row[:, None].to(tl.int64) * row_stride + at[None, :], mask=inside, other=0.0)
            middle = tl.load(center + at, mask=at < size, other=0.0).to(tl.float64)
            around = tl.where(inside, number.to(tl.float64) - middle[None, :], 0.0)
            some = tl.dot(around, tl.trans(around), some, out_dtype=tl.float64)
        products += some
    tl.store(sums + block * (peers * peers) + row[:, None] * peers + row[None, :], products)


def gram(rows_PD: Tensor, center_D: Tensor) -> Tensor:
    """P×P float64 products of rows around a centre."""
    count, size = rows_PD.shape
    peers, tiles = max(16, triton.next_power_of_2(count)), _COLUMNS * _RUN
    runs = min(max(1, size // (tiles * _BLOCKS)), _MOST_RUNS)
    blocks = -(-size // (tiles * runs))
    sums_BPP = torch.empty(blocks, peers, peers, dtype=torch.float64, device=rows_PD.device)
    with on(rows_PD.device):
        _gram[(blocks,)](
            rows_PD,
            center_D,
            sums_BPP,
            count,
            size,
            rows_PD.stride(0),
            runs,
            peers=peers,
            width=_COLUMNS,
            run=_RUN,
            num_warps=1,
        )
    return sums_BPP.sum(dim=0)[:count, :count]


@triton.jit  # type: ignore[untyped-decorator]
def _squares(vector, bounds, sums, blocks, width: tl.constexpr, times: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sum of squares of one block of one span."""
    span, block = tl.program_id(0), tl.program_id(1)
    stop = tl.load(bounds + span + 1)
    first = tl.load(bounds + span) + block * (width * times)
    squares = tl.zeros([width], tl.float64)
    for turn in range(times):
        at = first + turn * width + tl.arange(0, width)
        number = tl.load(vector + at, mask=at < stop, other=0.0).to(tl.float64)
        squares += number * number
    tl.store(sums + span * blocks + block, tl.sum(squares, 0))


def squared_parts(vector_D: Tensor, bounds_S: Tensor, longest: int) -> Tensor:
    """Squared lengths of a vector's spans in float64; arguments as those of `differences`."""
    spans, blocks = len(bounds_S) - 1, -(-longest // (_WIDTH * _TIMES))
    sums_SB = torch.empty(spans, blocks, dtype=torch.float64, device=vector_D.device)
    with on(vector_D.device):
        _squares[(spans, blocks)](vector_D, bounds_S, sums_SB, blocks, width=_WIDTH, times=_TIMES)
    return sums_SB.sum(dim=1)


@triton.jit  # type: ignore[untyped-decorator]
def _odd(words, found, size, width: tl.constexpr, times: tl.constexpr):  # type: ignore[no-untyped-def]
    """Set bit 0 where a block holds a subnormal, bit 1 where it holds an infinity or a NaN."""
    first = tl.program_id(0).to(tl.int64) * (width * times)
    subnormal = tl.zeros([width], tl.int32)
    endless = tl.zeros([width], tl.int32)
    for turn in range(times):
        at = first + turn * width + tl.arange(0, width)
        magnitude = tl.load(words + at, mask=at < size, other=0) & 0x7FFFFFFF
        subnormal |= ((magnitude > 0) & (magnitude < 0x00800000)).to(tl.int32)
        endless |= (magnitude >= 0x7F800000).to(tl.int32)
    flags = tl.max(subnormal, 0) + 2 * tl.max(endless, 0)
    if flags > 0:
        tl.atomic_or(found, flags)


def odd_numbers(words_D: Tensor) -> Tensor:
    """One int32: 1 if there is a subnormal, and 2 more if there is an infinity or a NaN, in float32 numbers seen as int32."""
    found_1 = torch.zeros(1, dtype=torch.int32, device=words_D.device)
    blocks = -(-len(words_D) // (_WIDTH * _TIMES))
    with on(words_D.device):
        _odd[(max(1, blocks),)](words_D, found_1, len(words_D), width=_WIDTH, times=_TIMES)
    return found_1


@triton.jit  # type: ignore[untyped-decorator]
def _cleaned(words, found, clean, size, width: tl.constexpr):  # type: ignore[no-untyped-def]
    """Numbers with zeros in place of subnormals, or zeros alone where `_odd` has found an infinity or a NaN."""
    at = tl.program_id(0).to(tl.int64) * width + tl.arange(0, width)
    word = tl.load(words + at, mask=at < size, other=0)
    word = tl.where((word & 0x7F800000) == 0, 0, word)
    tl.store(clean + at, tl.where((tl.load(found) & 2) == 2, 0, word), mask=at < size)


def finite_or_zero(words_D: Tensor) -> Tensor:
    """Float32 numbers, seen as int32, without subnormals; all zeros unless all are finite."""
    found_1, clean_D, width = odd_numbers(words_D), torch.empty_like(words_D), 4 * _WIDTH
    with on(words_D.device):
        _cleaned[(max(1, -(-len(words_D) // width)),)](words_D, found_1, clean_D, len(words_D), width=width)
    return clean_D


@triton.jit  # type: ignore[untyped-decorator]
def _combine(  # type: ignore[no-untyped-def]
    rows, weights, center, value, sums, rest, count, size, row_stride, peers: tl.constexpr, width: tl.constexpr
):
    """`Σ c_i x_i + rest·r` over one block, rounded to float32 and flushed, and three sums of squares."""
    block = tl.program_id(0)
    at, row = block * width + tl.arange(0, width), tl.arange(0, peers)
    inside = at < size
    mask = (row[:, None] < count) & inside[None, :]
    number = tl.load(rows + row[:, None].to(tl.int64) * row_stride + at[None, :], mask=mask, other=0.0).to(tl.float64)
    weight = tl.load(weights + row, mask=row < count, other=0.0)
    middle = tl.load(center + at, mask=inside, other=0.0).to(tl.float64)
    exact = tl.sum(number * weight[:, None], 0) + rest * middle
    exact = tl.where(inside, exact, 0.0)
    rounded = exact.to(tl.float32)
    bits = rounded.to(tl.int32, bitcast=True)
    rounded = tl.where((bits & 0x7F800000) == 0, 0.0, rounded)
    tl.store(value + at, rounded, mask=inside)
    wide = rounded.to(tl.float64)
    lost = exact - wide
    tl.store(sums + block * 3, tl.sum(lost * lost, 0))
    tl.store(sums + block * 3 + 1, tl.sum(wide * wide, 0))
    tl.store(sums + block * 3 + 2, tl.sum(middle * middle, 0))


def combine(rows_PD: Tensor, weights_P: Tensor, center_D: Tensor, rest: float) -> tuple[Tensor, Tensor]:
    """The combination of rows and a centre in float32, and squares of what rounding lost, of the value and of the centre."""
    count, size = rows_PD.shape
    peers, blocks = max(2, triton.next_power_of_2(count)), -(-size // _WIDTH)
    value_D = torch.empty_like(center_D)
    sums_B3 = torch.empty(blocks, 3, dtype=torch.float64, device=rows_PD.device)
    with on(rows_PD.device):
        _combine[(blocks,)](
            rows_PD,
            weights_P,
            center_D,
            value_D,
            sums_B3,
            rest,
            count,
            size,
            rows_PD.stride(0),
            peers=peers,
            width=_WIDTH,
        )
    return value_D, sums_B3.sum(dim=0)
