"""Blocks of codes in PyTorch's operations: numbers stay on the device where they lie, and their bytes cross. Where
Triton is there, its loops round and pack in one pass.

Bits are those of `blocks` on every device. Operations come one by one, so none is fused with the next. A number over its quantum
is exact, or so small that its code is 0 whether the device flushes it or not; numbers that come out are normal or zero.
Powers of two are made of bits, chance of whole numbers of 64 bits, which never overflow.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from troth.clip import on_device
from troth.clip.blocks import BIAS, BLOCK, FACTORS, NOT_FINITE, NOT_ROUNDED, SPACING, Blocks

# D coordinates, B blocks, C their codes

_AT_ONCE = BLOCK << 14  # numbers: whole ones of 64 bits, of which chance is made, would fill the memory
_MAGNITUDE, _MANTISSA, _WORD = 0x7FFFFFFF, 0x7FFFFF, 0xFFFFFFFF
_UNITS = float(1 << 24)


def coded(form: Blocks, numbers_D: Tensor, key: bytes = b"") -> tuple[Tensor, Tensor]:
    """Numbers rounded to the nearest, or by chance with a key, and their bytes: both there."""
    assert bool(torch.isfinite(numbers_D).all()), NOT_FINITE
    return begin(form, numbers_D, key)


def begin(form: Blocks, numbers_D: Tensor, key: bytes = b"") -> tuple[Tensor, Tensor]:
    """The same of numbers that are finite: nothing waits for the device."""
    assert numbers_D.dtype == torch.float32, f"only float32 is rounded, not {numbers_D.dtype}"
    if numbers_D.is_cuda and (loops := on_device.in_triton("triton_blocks")) is not None:
        there: tuple[Tensor, Tensor] = loops.coded(form, numbers_D, key)
        return there
    return _coded(form, numbers_D.detach(), key)


def pack(form: Blocks, numbers_D: Tensor) -> Tensor:
    """The bytes of rounded numbers."""
    found_D, raw = begin(form, numbers_D)
    assert bool((found_D == numbers_D).all()), NOT_ROUNDED
    return raw


def _coded(form: Blocks, numbers_D: Tensor, key: bytes) -> tuple[Tensor, Tensor]:
    found_D = torch.empty_like(numbers_D, memory_format=torch.contiguous_format)
    raw = torch.empty(form.length(len(numbers_D)), dtype=torch.uint8, device=numbers_D.device)
    for first in range(0, len(numbers_D), _AT_ONCE):
        last = min(first + _AT_ONCE, len(numbers_D))
        numbers_BC = _in_blocks(numbers_D[first:last], BLOCK)
        exponent_B = exponents(form, numbers_D[first:last])
        in_quanta_BC = numbers_BC * _powers_of_two(BIAS - exponent_B)
        codes_BC = _away(form, in_quanta_BC, key, first) if key else torch.round(in_quanta_BC).to(torch.int32)
        codes_BC.clamp_(-form.most, form.most)
        found_D[first:last] = (codes_BC * _powers_of_two(exponent_B - BIAS)).view(-1)[: last - first]
        # Of 63.6, 63 is left: 126 of the next smaller quantum.
        halved_B = (exponent_B > 0) & (codes_BC.abs().amax(1) <= form.most // 2)
        codes_BC <<= halved_B.to(torch.int32)[:, None]
        bytes_BC = codes_BC.to(_type(form)).view(torch.uint8)
        rows_BC = torch.cat([(exponent_B - halved_B.to(torch.int32)).to(torch.uint8)[:, None], bytes_BC], dim=1)
        raw[form.length(first) : form.length(last)] = rows_BC.view(-1)[: form.length(last - first)]
    return found_D, raw


def unpack(form: Blocks, raw: Tensor) -> Tensor | None:
    """Numbers of as many bytes as some numbers have, or None if they are in another form."""
    count = form.count(len(raw))
    found_D = torch.empty(count, dtype=torch.float32, device=raw.device)
    right = torch.ones((), dtype=torch.bool, device=raw.device)
    for first in range(0, count, _AT_ONCE):
        last = min(first + _AT_ONCE, count)
        rows_BC = _in_blocks(raw[form.length(first) : form.length(last)], form.length(BLOCK))
        bytes_BC = rows_BC[:, 1:].clone(memory_format=torch.contiguous_format)  # codes of two bytes lie at odd places
        exponent_B, codes_BC = rows_BC[:, 0].to(torch.int32), bytes_BC.view(_type(form)).to(torch.int32)
        largest_B = codes_BC.abs().amax(1)
        least_B = (exponent_B == 0) | (largest_B > form.most // 2)
        right &= ((exponent_B <= form.highest) & (largest_B <= form.most) & least_B).all()
        quanta_B1 = _powers_of_two(exponent_B.clamp(max=form.highest) - BIAS)
        found_D[first:last] = (codes_BC * quanta_B1).view(-1)[: last - first]
    return found_D if bool(right) else None


def exponents(form: Blocks, numbers_D: Tensor) -> Tensor:
    """The least exponent for each block, in int32."""
    largest_B = (_in_blocks(numbers_D.detach(), BLOCK).view(torch.int32) & _MAGNITUDE).amax(1)
    beyond_B = ((largest_B & _MANTISSA) > (1 << 23) - (1 << 25 - form.bits)).to(torch.int32)
    return ((largest_B >> 23) - (form.bits - 1) + beyond_B).clamp_(0, form.highest)


def _away(form: Blocks, in_quanta_BC: Tensor, key: bytes, place: int) -> Tensor:
    """Codes away from zero by chance, a whole number of units of 2⁻²⁴: what a fraction has below them never decides."""
    magnitude_BC = in_quanta_BC.abs().clamp_(max=form.most)
    whole_BC = magnitude_BC.to(torch.int32)
    units_BC = ((magnitude_BC - whole_BC) * _UNITS).to(torch.int32)
    first, second = np.frombuffer(key[:8], "<u4").tolist()
    place_D = torch.arange(place, place + in_quanta_BC.numel(), device=in_quanta_BC.device)
    mixed_D = _mixed((place_D & _WORD) ^ first) + (place_D >> 32) * SPACING + second
    chance_BC = (_mixed(mixed_D & _WORD) >> 8).to(torch.int32).view_as(units_BC)
    return torch.copysign(whole_BC + (units_BC + chance_BC >> 24), in_quanta_BC).to(torch.int32)


def _mixed(word_D: Tensor) -> Tensor:
    """Of words of 32 bits. A factor is taken below zero if it would overflow: what is left of 64 bits is the same."""
    for shift, factor in zip((16, 15), FACTORS, strict=True):
        word_D = ((word_D ^ word_D >> shift) * (factor if factor < 1 << 31 else factor - (1 << 32))) & _WORD
    return word_D ^ word_D >> 16


def _powers_of_two(exponent_B: Tensor) -> Tensor:
    """A column, from 2⁻¹²⁶ to 2¹²⁷."""
    return (exponent_B + 127 << 23).view(torch.float32)[:, None]


def _in_blocks(numbers_D: Tensor, width: int) -> Tensor:
    return pad(numbers_D, (0, -len(numbers_D) % width)).view(-1, width)


def _type(form: Blocks) -> torch.dtype:
    return torch.int8 if form.bits == 8 else torch.int16
