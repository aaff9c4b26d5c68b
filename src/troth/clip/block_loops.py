"""Loops over blocks of codes: one pass over memory, in which a block stays in the first cache while it is looked at again.

Bits are those of `blocks`, without float64. A number over its quantum, a power of two, is exact in float32; one that is too small
for that becomes zero, whether the machine flushes or not, and so it does in the definition. The fraction of a magnitude and its
chance are added up in units of 2⁻²⁴: a chance is a whole number of these, so what the fraction has below them never decides.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from troth.clip.blocks import BIAS, BLOCK, FACTORS, SPACING
from troth.clip.loops import bytes_at, exact, numbers_at

# R rows, B blocks, C codes or numbers of a block. `codes_C` is a place for those of one block; its type is the format's.

Codes = NDArray[Any]
Key = NDArray[np.uint32]  # two words, or none: then numbers are rounded to the nearest

_MAGNITUDE, _MANTISSA, _ENDLESS = np.uint32(0x7FFFFFFF), np.uint32(0x7FFFFF), np.uint32(0x7F800000)
_FIRST, _SECOND, _SPACING = np.uint32(FACTORS[0]), np.uint32(FACTORS[1]), np.uint32(SPACING)
_PLACES = np.arange(BLOCK, dtype=np.uint32)  # in 32 bits: a counter has 64, twice the width of all else
_UNITS = np.float32(1 << 24)


@exact
def rounded(numbers: int, size: int, place: int, key: Key, found: int, packed: int, codes_C: Codes) -> bool:
    """Round `size` numbers of a vector, from its coordinate `place` on, and write their bytes too unless `packed` is 0. Tells
    whether all are finite."""
    numbers_D, found_D = numbers_at(numbers, size), numbers_at(found, size)
    most, row = _most(codes_C), 1 + codes_C.itemsize * BLOCK
    for first in range(0, size, BLOCK):
        last = min(first + BLOCK, size)
        number_C, code_C = numbers_D[first:last], codes_C[: last - first]
        largest = _largest(number_C)
        if largest >= _ENDLESS:
            return False
        exponent = _exponent(largest, codes_C)
        per_quantum, quantum = _power_of_two(BIAS - exponent), _power_of_two(exponent - BIAS)
        if len(key):
            turn = min(last, ((place + first >> 32) + 1 << 32) - place)  # where the upper half of coordinates goes up
            _away(numbers_D[first:turn], per_quantum, place + first, key, codes_C)
            _away(numbers_D[turn:last], per_quantum, place + turn, key, codes_C[turn - first :])
        else:
            _nearest(number_C, per_quantum, most, code_C)
        _decode(code_C, quantum, found_D[first:last])
        if packed:
            if exponent and _largest_code(code_C) <= most // 2:  # of 63.6, 63 is left: 126 of the next smaller quantum
                exponent -= 1
                for c in range(len(code_C)):
                    code_C[c] *= 2
            _write(exponent, code_C, packed + first // BLOCK * row)
    return True


@exact
def pack(numbers: int, size: int, packed: int, codes_C: Codes) -> bool:
    """Write the bytes of rounded numbers. Tells whether they are such."""
    numbers_D, row, right = numbers_at(numbers, size), 1 + codes_C.itemsize * BLOCK, True
    for first in range(0, size, BLOCK):
        last = min(first + BLOCK, size)
        number_C, code_C = numbers_D[first:last], codes_C[: last - first]
        largest = _largest(number_C)
        if largest >= _ENDLESS:
            return False
        exponent = _exponent(largest, codes_C)
        quantum = _power_of_two(exponent - BIAS)
        _nearest(number_C, _power_of_two(BIAS - exponent), _most(codes_C), code_C)
        for c in range(len(code_C)):
            right &= np.float32(code_C[c]) * quantum == number_C[c]
        _write(exponent, code_C, packed + first // BLOCK * row)
    return right


@exact
def unpack(packed: int, size: int, found: int, codes_C: Codes) -> bool:
    """Write the numbers of blocks. Tells whether these are in their one form."""
    found_D, most, row = numbers_at(found, size), _most(codes_C), 1 + codes_C.itemsize * BLOCK
    for first in range(0, size, BLOCK):
        last = min(first + BLOCK, size)
        code_C, from_here = codes_C[: last - first], packed + first // BLOCK * row
        exponent, raw_C = int(bytes_at(from_here, 1)[0]), code_C.view(np.uint8)
        _copy(bytes_at(from_here + 1, len(raw_C)), raw_C)
        largest = _largest_code(code_C)
        if exponent > _highest(codes_C) or largest > most or (exponent and largest <= most // 2):
            return False
        _decode(code_C, _power_of_two(exponent - BIAS), found_D[first:last])
    return True


@exact
def exponents(numbers: int, size: int, found: int, codes_C: Codes) -> None:
    """Write the least exponent of each block."""
    numbers_D, found_B = numbers_at(numbers, size), bytes_at(found, -(-size // BLOCK))
    for first in range(0, size, BLOCK):
        found_B[first // BLOCK] = _exponent(_largest(numbers_D[first : min(first + BLOCK, size)]), codes_C)


@exact
def farthest(
    addresses_R: NDArray[np.uintp],
    center: int,
    start: int,
    size: int,
    share_R: NDArray[np.float64],
    drift_R: NDArray[np.float64],
    factors_B: NDArray[np.float64],
    other_bits: float,
) -> float:
    """The largest excess of a number over what is excused, times the factor of its block, or 0; blocks from `start` on."""
    center_D = numbers_at(center, size)
    off, excused, farthest_C = np.empty(BLOCK), np.empty(BLOCK), np.zeros(BLOCK)
    for b in range(len(factors_B)):
        first, factor = start + b * BLOCK, factors_B[b]
        last = min(first + BLOCK, size)
        center_C, off_C, excused_C = center_D[first:last], off[: last - first], excused[: last - first]
        for c in range(len(center_C)):
            off_C[c], excused_C[c] = 0.0, other_bits * abs(np.float64(center_C[c]))
        for r in range(len(addresses_R)):
            row_C, share, drift = numbers_at(addresses_R[r], size)[first:last], share_R[r], drift_R[r]
            for c in range(len(center_C)):
                away = np.float64(row_C[c]) - np.float64(center_C[c])
                off_C[c] += share * away
                excused_C[c] += drift * abs(away)
        for c in range(len(center_C)):
            excess = (abs(off_C[c]) - excused_C[c]) * factor
            farthest_C[c] = excess if excess > farthest_C[c] else farthest_C[c]
    return float(farthest_C.max())


# One block. Each loop is alone, so that it fills a vector unit.


@exact
def _largest(number_C: NDArray[np.float32]) -> Any:
    """The bits of the largest magnitude."""
    bits_C, largest = number_C.view(np.uint32), np.uint32(0)
    for c in range(len(bits_C)):
        largest = max(largest, np.uint32(bits_C[c] & _MAGNITUDE))
    return largest


@exact
def _exponent(largest: Any, codes_C: Codes) -> int:
    bits = 8 * codes_C.itemsize
    fits = (largest & _MANTISSA) <= (1 << 23) - (1 << 25 - bits)
    return min(_highest(codes_C), max(0, int(largest >> np.uint32(23)) - (bits - 1) + (0 if fits else 1)))


@exact
def _most(codes_C: Codes) -> int:
    return (1 << 8 * codes_C.itemsize - 1) - 1


@exact
def _highest(codes_C: Codes) -> int:
    return 254 - 8 * codes_C.itemsize


@exact
def _power_of_two(exponent: int) -> Any:
    """From 2⁻¹²⁶ to 2¹²⁷, in float32."""
    bits_1 = np.empty(1, np.uint32)
    bits_1[0] = exponent + 127 << 23
    return bits_1.view(np.float32)[0]


@exact
def _away(number_C: NDArray[np.float32], per_quantum: Any, place: int, key: Key, code_C: Codes) -> None:
    """Codes away from zero by chance."""
    low, first = np.uint32(place), key[0]
    second, most = np.uint32(np.uint32(place >> 32) * _SPACING + key[1]), np.float32(_most(code_C))
    for c in range(len(number_C)):
        mixed = _mixed(np.uint32(_mixed(np.uint32(np.uint32(low + _PLACES[c]) ^ first)) + second))
        magnitude = min(abs(number_C[c]) * per_quantum, most)
        whole = np.int32(magnitude)
        units = np.int32((magnitude - np.float32(whole)) * _UNITS)
        code = np.int32(whole + np.int32(np.int32(units + np.int32(mixed >> np.uint32(8))) >> np.int32(24)))
        code_C[c] = -code if number_C[c] < 0 else code


@exact
def _mixed(word: Any) -> Any:
    word = np.uint32(np.uint32(word ^ np.uint32(word >> np.uint32(16))) * _FIRST)
    word = np.uint32(np.uint32(word ^ np.uint32(word >> np.uint32(15))) * _SECOND)
    return np.uint32(word ^ np.uint32(word >> np.uint32(16)))


@exact
def _nearest(number_C: NDArray[np.float32], per_quantum: Any, most: int, code_C: Codes) -> None:
    largest = np.float32(most)
    for c in range(len(number_C)):
        code_C[c] = np.int32(max(-largest, min(largest, np.rint(number_C[c] * per_quantum))))


@exact
def _decode(code_C: Codes, quantum: Any, found_C: NDArray[np.float32]) -> None:
    for c in range(len(code_C)):
        found_C[c] = np.float32(code_C[c]) * quantum


@exact
def _largest_code(code_C: Codes) -> int:
    largest = np.int32(0)
    for c in range(len(code_C)):
        largest = max(largest, np.int32(abs(np.int32(code_C[c]))))
    return int(largest)


@exact
def _write(exponent: int, code_C: Codes, packed: int) -> None:
    raw_C = code_C.view(np.uint8)
    to_C = bytes_at(packed, 1 + len(raw_C))
    to_C[0] = exponent
    _copy(raw_C, to_C[1:])


@exact
def _copy(from_C: NDArray[np.uint8], to_C: NDArray[np.uint8]) -> None:
    """Byte by byte: codes of two bytes lie at odd places."""
    for c in range(len(from_C)):
        to_C[c] = from_C[c]
