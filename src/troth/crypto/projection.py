"""The ±1 projections: K signs per coordinate from a key, the same bits on every CPU and GPU.

A counter-based generator of 64-bit integers: the word of coordinate j is a keyed mix of j alone, and its low K bits are
the signs of that coordinate in the K rows. Integer multiplication wraps around alike everywhere, so no float and no
library generator is involved. The key comes from coins that were opened after everything it checks was committed.
"""

import torch
from torch import Tensor

from troth.crypto.hashing import Digest

# K projections, D coordinates

MOST_ROWS = 64
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # as signed 64-bit numbers, which is what tensors hold
_MIX1 = 0xFF51AFD7ED558CCD - (1 << 64)
_MIX2 = 0xC4CEB9FE1A85EC53 - (1 << 64)


def projection_signs(key: Digest, rows: int, start: int, stop: int, device: str | torch.device = "cpu") -> Tensor:
    """Rows × coordinates [start, stop) of ±1, as int8."""
    if not 1 <= rows <= MOST_ROWS or not 0 <= start <= stop:
        raise ValueError(f"asked for {rows} rows of coordinates {start} to {stop}")
    key0 = int.from_bytes(key[:8], "big", signed=True)
    key1 = int.from_bytes(key[8:16], "big", signed=True)
    words_D = torch.arange(start, stop, dtype=torch.int64, device=device) * _GOLDEN + key0
    words_D = _mix(_mix(words_D) ^ key1)
    shifts_K = torch.arange(rows, dtype=torch.int64, device=device)
    bits_KD = (words_D[None, :] >> shifts_K[:, None]) & 1
    return (1 - 2 * bits_KD).to(torch.int8)


def _mix(words: Tensor) -> Tensor:
    """The finaliser of MurmurHash3: every input bit reaches every output bit."""
    words = (words ^ _shift(words, 33)) * _MIX1
    words = (words ^ _shift(words, 33)) * _MIX2
    return words ^ _shift(words, 33)


def _shift(words: Tensor, count: int) -> Tensor:
    """A logical shift to the right: tensors only have the arithmetic one."""
    return (words >> count) & ((1 << (64 - count)) - 1)
