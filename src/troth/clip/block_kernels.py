"""Blocks of codes through compiled loops, chunk by chunk on the cores given to this peer."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from troth.clip.blocks import BLOCK, NOT_FINITE, NOT_ROUNDED, Blocks
from troth.clip.exact import Floats
from troth.clip.kernels import Rows, address, spread

# R rows, D coordinates, B blocks

Numbers = NDArray[np.float32]

_BLOCKS_AT_ONCE = 1 << 10


def rounded(form: Blocks, numbers_D: Numbers, key: bytes = b"", place: int = 0) -> Numbers:
    """Numbers rounded to the nearest, or by chance with a key, as those from the coordinate `place` on."""
    found_D = np.empty(len(numbers_D), np.float32)
    _round(form, numbers_D, key, place, found_D, None)
    return found_D


def rounded_and_packed(form: Blocks, numbers_D: Numbers, key: bytes = b"") -> tuple[Numbers, memoryview]:
    """The same, and their bytes, in one pass."""
    found_D, raw = np.empty(len(numbers_D), np.float32), np.empty(form.length(len(numbers_D)), np.uint8)
    _round(form, numbers_D, key, 0, found_D, raw)
    return found_D, raw.data


def _round(
    form: Blocks, numbers_D: Numbers, key: bytes, place: int, found_D: Numbers, raw: NDArray[np.uint8] | None
) -> None:
    from troth.clip import block_loops

    ready_D, words = _ready(numbers_D), np.frombuffer(key[:8], "<u4").astype(np.uint32)
    numbers, found = address(ready_D), address(found_D)

    def work(first: int, size: int, at: int, codes_C: NDArray[Any]) -> bool:
        to = 0 if raw is None else address(raw) + at
        return block_loops.rounded(numbers + 4 * first, size, place + first, words, found + 4 * first, to, codes_C)

    assert _through(form, len(ready_D), work), NOT_FINITE


def pack(form: Blocks, numbers_D: Numbers) -> memoryview:
    from troth.clip import block_loops

    ready_D, raw = _ready(numbers_D), np.empty(form.length(len(numbers_D)), np.uint8)
    numbers, packed = address(ready_D), address(raw)

    def work(first: int, size: int, at: int, codes_C: NDArray[Any]) -> bool:
        return block_loops.pack(numbers + 4 * first, size, packed + at, codes_C)

    assert _through(form, len(ready_D), work), NOT_ROUNDED
    return raw.data


def unpack(form: Blocks, raw: NDArray[np.uint8], into_D: Numbers | None = None) -> Numbers | None:
    """Numbers of as many bytes as some numbers have, or None if they are in another form."""
    from troth.clip import block_loops

    found_D = np.empty(form.count(len(raw)), np.float32) if into_D is None else into_D
    assert found_D.shape == (form.count(len(raw)),), "a place for as many numbers as the bytes have"
    assert found_D.dtype == np.float32, f"loops write float32, not {found_D.dtype}"
    assert found_D.flags.carray, "written as it lies: contiguous, aligned and writable"
    packed, found = address(raw), address(found_D)

    def work(first: int, size: int, at: int, codes_C: NDArray[Any]) -> bool:
        return block_loops.unpack(packed + at, size, found + 4 * first, codes_C)

    return found_D if _through(form, len(found_D), work) else None


def exponents(form: Blocks, numbers_D: Numbers) -> NDArray[np.int64]:
    from troth.clip import block_loops

    ready_D, found_B = _ready(numbers_D), np.empty(-(-len(numbers_D) // BLOCK), np.uint8)
    numbers, found = address(ready_D), address(found_B)

    def work(first: int, size: int, _: int, codes_C: NDArray[Any]) -> bool:
        block_loops.exponents(numbers + 4 * first, size, found + first // BLOCK, codes_C)
        return True

    _through(form, len(ready_D), work)
    return found_B.astype(np.int64)


def farthest_number(
    rows_RD: Numbers, center_D: Numbers, share_R: Floats, drift_R: Floats, factors_B: Floats, other_bits: float
) -> float:
    """The largest `∣Σ_i share_i (x_i − v)∣ − Σ_i drift_i ∣x_i − v∣ − other_bits·∣v∣`, times the factor of its block; or 0."""
    from troth.clip import block_loops

    rows, ready_D = Rows(rows_RD), _ready(center_D)
    assert rows.size == len(ready_D), "loops read as many numbers from the centre as from a row"
    assert len(factors_B) == -(-rows.size // BLOCK), "a factor for each block"
    addresses_R, center, width = rows.addresses_R, address(ready_D), _BLOCKS_AT_ONCE

    def look(chunk: int) -> float:
        first, factors = chunk * width, factors_B[chunk * width : (chunk + 1) * width]
        return block_loops.farthest(
            addresses_R, center, first * BLOCK, rows.size, share_R, drift_R, factors, other_bits
        )

    return max(spread(look, -(-len(factors_B) // width)), default=0.0)


def _through(form: Blocks, size: int, work: Callable[[int, int, int, NDArray[Any]], bool]) -> bool:
    """Whether all chunks went well: the first number of each, how many, where their bytes begin, a place for a block's codes."""
    width = _BLOCKS_AT_ONCE * BLOCK

    def chunk(number: int) -> bool:
        first = number * width
        codes_C = np.empty(BLOCK, np.dtype(f"i{form.bits // 8}"))
        return work(first, min(width, size - first), form.length(first), codes_C)

    return all(spread(chunk, -(-size // width)))


def _ready(numbers_D: Numbers) -> Numbers:
    assert numbers_D.dtype == np.float32, f"loops read float32, not {numbers_D.dtype}"
    assert numbers_D.ndim == 1, "one vector"
    return np.require(numbers_D, np.float32, ["C", "A"])


def load(forms: tuple[Blocks, ...]) -> None:
    """Compile or load the loops."""
    for form in forms:
        number_D, _ = rounded_and_packed(form, np.ones(1, np.float32), bytes(8))
        unpack(form, np.frombuffer(pack(form, number_D), np.uint8))
        exponents(form, number_D)
    farthest_number(number_D[None], number_D, np.ones(1), np.ones(1), np.ones(1), 1.0)
