"""Blocks of codes in one pass on a GPU, written in Triton: numbers and bytes out; and the judge of single numbers.

Bits are those of `block_tensors`, however operations are fused. A number over its quantum is exact, or so small that its code
is 0. Its fraction is counted in units of 2⁻²⁴: exactly from half a quantum on, and below that only chance asks, which has no
others. So both kinds of rounding add whole numbers.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from troth.clip.blocks import BLOCK, Blocks
from troth.clip.exact import Floats
from troth.clip.triton_loops import on

# P rows of a matrix, D coordinates, B blocks; a block is a row of a tile, with its exponent in front

_ROWS = 4  # of a tile: one for each warp


@triton.jit
def _mixed(word):  # type: ignore[no-untyped-def]
    word = (word ^ (word >> 16)) * 0x7FEB352D
    word = (word ^ (word >> 15)) * 0x846CA68B
    return word ^ (word >> 16)


@triton.jit(do_not_specialize=["count", "start", "first", "second"])  # type: ignore[untyped-decorator]
def _coded(  # type: ignore[no-untyped-def]
    words, found, raw, count, start, first, second, bits: tl.constexpr, drawn: tl.constexpr, rows: tl.constexpr
):
    """Some blocks, from the bits of their numbers; `start`: the place of the first of all."""
    most: tl.constexpr = (1 << (bits - 1)) - 1
    block = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)[:, None]
    lane = tl.arange(0, 256)[None, :]
    at = block * 255 + lane - 1
    inside = (lane > 0) & (at < count)
    word = tl.load(words + at, mask=inside, other=0)
    magnitude = word & 0x7FFFFFFF
    largest = tl.max(magnitude, 1)[:, None]
    beyond = ((largest & 0x7FFFFF) > (1 << 23) - (1 << (25 - bits))).to(tl.int32)
    exponent = tl.minimum(tl.maximum((largest >> 23) - (bits - 1) + beyond, 0), 254 - bits)
    in_quanta = magnitude.to(tl.float32, bitcast=True) * ((253 - exponent) << 23).to(tl.float32, bitcast=True)
    in_quanta = tl.minimum(in_quanta, 1.0 * most)
    whole = in_quanta.to(tl.int32)
    units = ((in_quanta - whole.to(tl.float32)) * 16777216.0).to(tl.int32)
    if drawn:
        place = at + start
        low, high = place.to(tl.uint32), (place >> 32).to(tl.uint32)
        seeded = low ^ first.to(tl.uint32, bitcast=True)
        chance = _mixed(_mixed(seeded) + high * 0x9E3779B9 + second.to(tl.uint32, bitcast=True)) >> 8
        code = whole + ((units + chance.to(tl.int32)) >> 24)
    else:
        code = whole + ((units + ((1 << 23) - 1) + (whole & 1)) >> 24)  # of two as near, the even one
    halved = ((exponent > 0) & (tl.max(code, 1)[:, None] <= most // 2)).to(tl.int32)
    code = tl.where(word < 0, -code, code)
    tl.store(found + at, code.to(tl.float32) * ((exponent + 1) << 23).to(tl.float32, bitcast=True), mask=inside)
    byte = tl.where(lane == 0, exponent - halved, code << halved)
    there = tl.where(lane == 0, at + 1, at) < count
    if bits == 8:
        tl.store(raw + block * 256 + lane, byte.to(tl.uint8), mask=there)
    else:  # the lower byte of each code, and the upper one
        behind = raw + block * 511 + 2 * lane
        tl.store(tl.where(lane == 0, behind, behind - 1), byte.to(tl.uint8), mask=there)
        tl.store(behind, (byte >> 8).to(tl.uint8), mask=inside)


def coded(form: Blocks, numbers_D: Tensor, key: bytes = b"", start: int = 0) -> tuple[Tensor, Tensor]:
    """Finite numbers rounded to the nearest, or by chance with a key, and their bytes."""
    words_D = numbers_D.detach().contiguous().view(torch.int32)
    found_D, length = torch.empty_like(words_D, dtype=torch.float32), form.length(len(words_D))
    raw = torch.empty(-(-length // 4) * 4, dtype=torch.uint8, device=words_D.device)[:length]  # hashed in whole words
    first, second = np.frombuffer(key[:8] or bytes(8), "<i4").tolist()
    tile = BLOCK * _ROWS
    with on(words_D.device):
        _coded[(max(1, -(-len(words_D) // tile)),)](
            words_D,
            found_D,
            raw,
            len(words_D),
            start,
            first,
            second,
            bits=form.bits,
            drawn=bool(key),
            rows=_ROWS,
            num_warps=_ROWS,
        )
    return found_D, raw


@triton.jit  # type: ignore[untyped-decorator]
def _farthest(  # type: ignore[no-untyped-def]
    rows, center, factors, found, size, peers, row_stride, other_bits: tl.constexpr, tile: tl.constexpr
):
    """The largest in some blocks; `factors`: shares and drifts of the rows, then one for each block."""
    block = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)[:, None]
    lane = tl.arange(0, 256)[None, :]
    at = block * 255 + lane
    inside = (lane < 255) & (at < size)
    middle = tl.load(center + at, mask=inside, other=0.0).to(tl.float64)
    off = tl.zeros([tile, 256], tl.float64)
    excused = other_bits * tl.abs(middle)
    row = rows + at
    for peer in range(peers):
        away = tl.load(row, mask=inside, other=0.0).to(tl.float64) - middle
        off += tl.load(factors + peer) * away
        excused += tl.load(factors + peers + peer) * tl.abs(away)
        row += row_stride
    factor = tl.load(factors + 2 * peers + block, mask=block * 255 < size, other=0.0)
    worst = tl.where(inside, (tl.abs(off) - excused) * factor, 0.0)
    tl.store(found + tl.program_id(0), tl.max(tl.max(worst, 1), 0))


def farthest_number(
    rows_PD: Tensor, center_D: Tensor, share_P: Floats, drift_P: Floats, factors_B: Floats, other_bits: float
) -> float:
    """The bits of `block_kernels.farthest_number`: rows are added up in their order, and no product is fused with a sum."""
    rows_PD, center_D = (t.detach() if t.stride(-1) == 1 else t.detach().contiguous() for t in (rows_PD, center_D))
    factors = torch.from_numpy(np.concatenate([share_P, drift_P, factors_B])).to(rows_PD.device)
    found = torch.zeros(-(-max(1, len(factors_B)) // _ROWS), dtype=torch.float64, device=rows_PD.device)
    with on(rows_PD.device):
        _farthest[(len(found),)](
            rows_PD,
            center_D,
            factors,
            found,
            len(center_D),
            len(rows_PD),
            rows_PD.stride(0),
            other_bits=other_bits,
            tile=_ROWS,
            num_warps=_ROWS,
            enable_fp_fusion=False,
        )
    return float(found.max())
