"""Signs of the random projections, as bits of a keystream: the same on every machine, from any coordinate on.

AES-256 in counter mode, keyed with the opened coins. Every coordinate takes the next 16 bits (for more than 16
rows a multiple of that), and bit k stands for its sign in row k. The coins are opened after everything that the projections
check was committed (SPEC A4).
"""

from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from troth.crypto.hashing import Digest, side_by_side

# P vectors, K rows, D coordinates, W words of 16 rows for each of them

MOST_ROWS = 64
_ROWS = 16  # in a word
_CIPHER_BYTES = 16  # in a block, and the counter counts blocks
_STRETCH = 1 << 20  # bytes of the keystream that one thread makes: the counter can begin anywhere
_ZEROS = memoryview(bytes(1 << 19))  # to encrypt; fresh memory for as many takes nearly as long as the cipher


def projection_signs(key: Digest, rows: int, start: int, stop: int) -> NDArray[np.int8]:
    """K×D signs, +1 or −1, of coordinates `start` to `stop` (not included)."""
    words_DW = _words(key, rows, start, stop)
    signs_DK = _signs(words_DW)[:, :rows]
    return np.ascontiguousarray(signs_DK.T)


def project(key: Digest, rows: int, start: int, vectors_PD: NDArray[np.float64]) -> NDArray[np.float64]:
    """P×K products of the signs with vectors whose first coordinate is `start`, without ever holding K×D signs.

    Coordinates with the same word have the same signs in sixteen rows: they are added up first, and 65,536 sums get their signs.
    The products differ from those with `projection_signs` in the order of additions only. For large vectors
    `troth.clip.kernels` does the same with bytes instead of words, and without the vectors in float64.
    """
    words_DW = _words(key, rows, start, start + vectors_PD.shape[1])
    products: list[NDArray[np.float64]] = []
    for words_D in words_DW.T:
        places_D = words_D.astype(np.intp)
        sums_PV = np.array([np.bincount(places_D, vector_D, 1 << _ROWS) for vector_D in vectors_PD], dtype=np.float64)
        products.append(_signed_sums(sums_PV))
    return np.concatenate(products, axis=1)[:, :rows]


def sign_bytes(
    key: Digest, rows: int, start: int, stop: int, allocate: Callable[[int], NDArray[np.uint8]] | None = None
) -> NDArray[np.uint8]:
    """D×2W bytes of the keystream, from coordinate `start` on: bit k of a coordinate's bytes is its sign in row k, set is −1.

    `allocate` gives memory for so many bytes, where that must not be any memory."""
    return _words(key, rows, start, stop, allocate).view(np.uint8)


def _words(
    key: Digest, rows: int, start: int, stop: int, allocate: Callable[[int], NDArray[np.uint8]] | None = None
) -> NDArray[np.uint16]:
    """D×W words of the keystream, from coordinate `start` on."""
    if not 0 < rows <= MOST_ROWS or not 0 <= start <= stop:
        raise ValueError(f"needs 1 to {MOST_ROWS} rows and a range, got {rows} rows of {start}…{stop}")
    width = 2 * -(-rows // _ROWS)
    block, skipped = divmod(width * start, _CIPHER_BYTES)
    count = skipped + width * (stop - start)
    stream = np.empty(count + _CIPHER_BYTES, dtype=np.uint8) if allocate is None else allocate(count + _CIPHER_BYTES)

    def fill(first: int) -> None:
        _fill(key, block + first // _CIPHER_BYTES, stream.data[first : min(first + _STRETCH, count)])

    side_by_side(fill, range(0, count, _STRETCH))
    return stream[skipped:count].view("<u2").reshape(stop - start, width // 2)


def _fill(key: Digest, block: int, out: memoryview) -> None:
    """Write the keystream from this block of the cipher on."""
    encryptor = Cipher(algorithms.AES(key), modes.CTR(block.to_bytes(_CIPHER_BYTES, "big"))).encryptor()
    last = bytearray(2 * _CIPHER_BYTES)  # the library wants room for another block behind what it writes
    whole = max(0, len(out) - _CIPHER_BYTES)
    for first in range(0, whole, len(_ZEROS)):
        some = min(len(_ZEROS), whole - first)
        encryptor.update_into(_ZEROS[:some], out[first : first + some + _CIPHER_BYTES - 1])
    encryptor.update_into(_ZEROS[: len(out) - whole], last)
    out[whole:] = last[: len(out) - whole]


def _signs(words_DW: NDArray[np.uint16]) -> NDArray[np.int8]:
    """D×16W signs: a set bit is −1."""
    bits = np.unpackbits(np.ascontiguousarray(words_DW).view(np.uint8), bitorder="little")
    return (1 - 2 * bits.astype(np.int8)).reshape(len(words_DW), -1)


def _signed_sums(sums_PV: NDArray[np.float64]) -> NDArray[np.float64]:
    """P×16: sums over all values of a word, each with the signs of that word; bit by bit, from the highest down."""
    products_PK = np.empty((len(sums_PV), _ROWS))
    for row in reversed(range(_ROWS)):
        low_PV, high_PV = np.split(sums_PV, 2, axis=1)  # the highest bit that is left
        products_PK[:, row] = low_PV.sum(axis=1) - high_PV.sum(axis=1)
        sums_PV = low_PV + high_PV
    return products_PK
