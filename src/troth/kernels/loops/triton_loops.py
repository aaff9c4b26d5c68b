"""One pass over vectors on a GPU, written in Triton, which comes with PyTorch for CUDA.

Imported only where a tensor lies on a GPU; `on_device` holds the same in PyTorch's operations, and is what this is held to.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# S spans, B blocks of a span, R rows, D coordinates, K signs

_WIDTH = 256  # coordinates at a time …
_TIMES = 16  # … and how often in one block
_SIGNS = 16  # bits of a word
_SUMS = _SIGNS + 2  # and the squares of the distance and of the row


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
    signed = tl.zeros([16], tl.float64)
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
        signed += tl.sum(tl.where(minus, -away[:, None], away[:, None]), 0)
    tl.store(at_sum + bits, signed)
    tl.store(at_sum + 16, tl.sum(squares, 0))
    tl.store(at_sum + 17, tl.sum(lengths, 0))


def differences(rows_RD: Tensor, center_D: Tensor, words_D: Tensor, bounds_S: Tensor, longest: int) -> Tensor:
    """S×R×18 float64: products with sixteen signs, squared distances and squared lengths, span by span.

    `words_D` holds sixteen bits for each coordinate, `bounds_S` the S + 1 bounds; `longest` is the longest span's length.
    """
    spans, blocks = len(bounds_S) - 1, -(-longest // (_WIDTH * _TIMES))
    sums_SBRK = torch.empty(spans, blocks, len(rows_RD), _SUMS, dtype=torch.float64, device=rows_RD.device)
    with torch.cuda.device(rows_RD.device):
        _differences[(spans, blocks, len(rows_RD))](
            rows_RD, center_D, words_D, bounds_S, sums_SBRK, rows_RD.stride(0), blocks, width=_WIDTH, times=_TIMES
        )
    return sums_SBRK.sum(dim=1)
