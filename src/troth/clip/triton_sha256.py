"""SHA-256 of many pieces of memory at once on a GPU, written in Triton (FIPS 180-4).

One piece is a chain of blocks of 64 bytes that nothing can shorten; thousands of chains side by side take as long as one. Numbers
that were computed on a GPU need not travel to be hashed.
"""

from functools import cache
from math import isqrt

import torch
import triton
import triton.language as tl
from torch import Tensor

from troth.clip.triton_loops import on

# N pieces of memory, each from the beginning of a word of 32 bits to any byte

_LANES = 8  # pieces of one warp: of more, their scattered reads would hold up each other


@triton.jit  # type: ignore[untyped-decorator]
def _turned(x, by: tl.constexpr):  # type: ignore[no-untyped-def]
    return (x >> by) | (x << (32 - by))


@triton.jit
def _round(a, b, c, d, e, f, g, h, word):  # type: ignore[no-untyped-def]
    """New values of `d` and `h`; `word` comes with its constant."""
    first = h + (_turned(e, 6) ^ _turned(e, 11) ^ _turned(e, 25)) + ((e & f) ^ (~e & g)) + word
    second = (_turned(a, 2) ^ _turned(a, 13) ^ _turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))
    return d + first, first + second


@triton.jit
def _rounds(a, b, c, d, e, f, g, h, w0, w1, w2, w3, w4, w5, w6, w7, k):  # type: ignore[no-untyped-def]
    """Eight rounds, after which every variable has its own name again; `k` points to their constants."""
    d, h = _round(a, b, c, d, e, f, g, h, w0 + tl.load(k).to(tl.uint32, bitcast=True))
    c, g = _round(h, a, b, c, d, e, f, g, w1 + tl.load(k + 1).to(tl.uint32, bitcast=True))
    b, f = _round(g, h, a, b, c, d, e, f, w2 + tl.load(k + 2).to(tl.uint32, bitcast=True))
    a, e = _round(f, g, h, a, b, c, d, e, w3 + tl.load(k + 3).to(tl.uint32, bitcast=True))
    h, d = _round(e, f, g, h, a, b, c, d, w4 + tl.load(k + 4).to(tl.uint32, bitcast=True))
    g, c = _round(d, e, f, g, h, a, b, c, w5 + tl.load(k + 5).to(tl.uint32, bitcast=True))
    f, b = _round(c, d, e, f, g, h, a, b, w6 + tl.load(k + 6).to(tl.uint32, bitcast=True))
    e, a = _round(b, c, d, e, f, g, h, a, w7 + tl.load(k + 7).to(tl.uint32, bitcast=True))
    return a, b, c, d, e, f, g, h


@triton.jit
def _next(word, one, nine, fourteen):  # type: ignore[no-untyped-def]
    """The word that comes sixteen places after `word`."""
    small = _turned(one, 7) ^ _turned(one, 18) ^ (one >> 3)
    large = _turned(fourteen, 17) ^ _turned(fourteen, 19) ^ (fourteen >> 10)
    return word + small + nine + large


@triton.jit
def _extended(w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15):  # type: ignore[no-untyped-def]
    """The next sixteen words of the schedule."""
    w0, w1 = _next(w0, w1, w9, w14), _next(w1, w2, w10, w15)
    w2, w3 = _next(w2, w3, w11, w0), _next(w3, w4, w12, w1)
    w4, w5 = _next(w4, w5, w13, w2), _next(w5, w6, w14, w3)
    w6, w7 = _next(w6, w7, w15, w4), _next(w7, w8, w0, w5)
    w8, w9 = _next(w8, w9, w1, w6), _next(w9, w10, w2, w7)
    w10, w11 = _next(w10, w11, w3, w8), _next(w11, w12, w4, w9)
    w12, w13 = _next(w12, w13, w5, w10), _next(w13, w14, w6, w11)
    w14, w15 = _next(w14, w15, w7, w12), _next(w15, w0, w8, w13)
    return w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15


@triton.jit
def _words(raw, place, length, bits_at):  # type: ignore[no-untyped-def]
    """A block of every lane: words with their bytes the other way round, a single bit behind the last byte, and at `bits_at` the
    length in bits."""
    word = raw.to(tl.uint32, bitcast=True)
    word = (word >> 24) | ((word >> 8) & 0xFF00) | ((word << 8) & 0xFF0000) | (word << 24)
    left = length - 4 * place
    bit = tl.full([1, 1], 1 << 31, tl.uint32) >> (8 * tl.minimum(tl.maximum(left, 0), 3)).to(tl.uint32)
    word = tl.where(left < 4, (word & (0 - 2 * bit)) | tl.where(left < 0, 0, bit), word)
    return tl.where(place == bits_at, (8 * length).to(tl.uint32), word)


@triton.jit  # type: ignore[untyped-decorator]
def _apart(words, lanes: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sixteen columns, each on its own."""
    even, odd = tl.split(tl.reshape(words, [lanes, 2, 2, 2, 2]))
    w0, w8, w4, w12, w2, w10, w6, w14 = _eighths(even)
    w1, w9, w5, w13, w3, w11, w7, w15 = _eighths(odd)
    return w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15


@triton.jit
def _eighths(words):  # type: ignore[no-untyped-def]
    """Eight columns; the first axis that they were cut along changes fastest."""
    low, high = tl.split(words)
    low_low, low_high = tl.split(low)
    high_low, high_high = tl.split(high)
    a, b = tl.split(low_low)
    c, d = tl.split(low_high)
    e, f = tl.split(high_low)
    g, h = tl.split(high_high)
    return a, b, c, d, e, f, g, h


@triton.jit  # type: ignore[untyped-decorator]
def _together(s0, s1, s2, s3, s4, s5, s6, s7, lanes: tl.constexpr):  # type: ignore[no-untyped-def]
    """Eight columns side by side."""
    even = tl.join(tl.join(s0, s4), tl.join(s2, s6))
    odd = tl.join(tl.join(s1, s5), tl.join(s3, s7))
    return tl.reshape(tl.join(even, odd), [lanes, 8])


@triton.jit  # type: ignore[untyped-decorator]
def _sha256(words, starts, lengths, constants, hashes, count, lanes: tl.constexpr):  # type: ignore[no-untyped-def]
    """Hashes of as many pieces as there are lanes. The next block is read while this one is taken in."""
    number, column, state = tl.program_id(0) * lanes + tl.arange(0, lanes), tl.arange(0, 16), tl.arange(0, 8)
    at = words + tl.load(starts + number, mask=number < count, other=0)
    length = tl.load(lengths + number, mask=number < count, other=0).to(tl.int32)
    blocks = (length + 72) // 64  # a bit and the length are added
    first = tl.load(constants + 64 + state).to(tl.uint32, bitcast=True)  # behind the constants of the rounds
    total = tl.zeros([lanes, 8], tl.uint32) + first[None, :]
    place = column[None, :] + tl.zeros([lanes, 1], tl.int32)
    raw = tl.load(at[:, None] + place, mask=4 * place < length[:, None], other=0)
    for block in range(tl.max(blocks, 0)):
        w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = _apart(
            _words(raw, place, length[:, None], 16 * blocks[:, None] - 1), lanes
        )
        place += 16
        raw = tl.load(at[:, None] + place, mask=4 * place < length[:, None], other=0)
        a, e, c, g, b, f, d, h = _eighths(tl.reshape(total, [lanes, 2, 2, 2]))
        a, b, c, d, e, f, g, h = _rounds(a, b, c, d, e, f, g, h, w0, w1, w2, w3, w4, w5, w6, w7, constants)
        a, b, c, d, e, f, g, h = _rounds(a, b, c, d, e, f, g, h, w8, w9, w10, w11, w12, w13, w14, w15, constants + 8)
        for sixteen in range(1, 4):
            w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = _extended(
                w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15
            )
            k = constants + 16 * sixteen
            a, b, c, d, e, f, g, h = _rounds(a, b, c, d, e, f, g, h, w0, w1, w2, w3, w4, w5, w6, w7, k)
            a, b, c, d, e, f, g, h = _rounds(a, b, c, d, e, f, g, h, w8, w9, w10, w11, w12, w13, w14, w15, k + 8)
        added = _together(a, b, c, d, e, f, g, h, lanes)
        total += tl.where((block < blocks)[:, None], added, 0).to(tl.uint32)  # a shorter piece has ended
    there = (number < count)[:, None] & (state[None, :] < 8)
    tl.store(hashes + 8 * number[:, None] + state[None, :], total.to(tl.int32, bitcast=True), mask=there)


def sha256(words_W: Tensor, starts_N: Tensor, lengths_N: Tensor) -> Tensor:
    """N×8 int32: hashes of pieces that start so many words after `words_W` and are so many bytes long, less than 2²⁸.

    A piece may lie in other memory of the same device: then it starts before `words_W`, or behind its end."""
    hashes_N8 = torch.empty(len(starts_N), 8, dtype=torch.int32, device=words_W.device)
    with on(words_W.device):
        _sha256[(-(-len(starts_N) // _LANES),)](
            words_W,
            starts_N,
            lengths_N,
            _constants(words_W.device),
            hashes_N8,
            len(starts_N),
            lanes=_LANES,
            num_warps=1,
            num_stages=1,
        )
    return hashes_N8


@cache
def _constants(device: torch.device) -> Tensor:
    """First 32 bits behind the point: of the cube roots of the first 64 primes, then of the square roots of the first eight."""
    primes = [p for p in range(2, 312) if all(p % q for q in range(2, isqrt(p) + 1))]
    roots = [_cube_root(p << 96) for p in primes] + [isqrt(p << 64) for p in primes[:8]]
    signed = [(root % (1 << 32) + (1 << 31)) % (1 << 32) - (1 << 31) for root in roots]
    return torch.tensor(signed, dtype=torch.int32, device=device)


def _cube_root(number: int) -> int:
    """Rounded down."""
    low, high = 0, 1 << (number.bit_length() // 3 + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**3 <= number else (low, middle - 1)
    return low
