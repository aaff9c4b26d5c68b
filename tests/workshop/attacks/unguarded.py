"""Peers without some of the checks that codes need, for those who show that these are needed."""

import numpy as np
from numpy.typing import NDArray

from troth.clip.blocks import BIAS, BLOCK, Blocks
from troth.protocol.step.leaves import LeafFindings

# D coordinates


def read_as_it_stands(form: Blocks, view: memoryview, into_D: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """In place of `Blocks.unpack`: numbers of blocks whatever their exponents are (without SPEC C4)."""
    raw, width = np.frombuffer(view, np.uint8), form.length(BLOCK)
    exponent_B, bytes_D = raw[::width].astype(np.int64), np.delete(raw, np.arange(0, len(raw), width))
    codes_D = bytes_D.view(f"<i{form.bits // 8}").astype(np.float64)
    quanta_D = np.repeat(np.ldexp(1.0, exponent_B - BIAS), BLOCK)[: len(codes_D)]
    numbers_D: NDArray[np.float32] = (codes_D * quanta_D).astype(np.float32)
    if into_D is None:
        return numbers_D
    into_D[:] = numbers_D
    return into_D


async def look_at_nothing(*_: object) -> LeafFindings:
    """In place of `look_at_leaves` (without SPEC V4)."""
    return LeafFindings()
