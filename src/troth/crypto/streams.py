"""Named random streams: the same numbers from the same seed on every machine, for ever.

A minibatch must follow from a public seed, so that anyone can recompute anyone's gradient. Library generators do not
promise that: their distributions change between versions and use `log` and `cos`, which differ between machines. Here
SHA-256 makes a key out of a seed and a purpose, Philox (whose integer stream NumPy guarantees) expands it, and the
distributions below use only exact integer and correctly rounded operations. Golden vectors pin all of them.
"""

import hashlib
from typing import Any, NewType

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

Seed = NewType("Seed", bytes)  # 32 bytes

_DOMAIN = b"troth/stream/1"


def derive(seed: bytes | int, *purpose: str | int | bytes) -> Seed:
    """`SHA-256(domain, seed, purpose…)`, every part tagged with its type and length: no two inputs run together."""
    parts = [_DOMAIN, *(_tagged(part) for part in (seed, *purpose))]
    return Seed(hashlib.sha256(b"".join(parts)).digest())


def stream(seed: bytes | int, *purpose: str | int | bytes) -> "Stream":
    """One stream per purpose: `stream(seed, "attack", peer)`. There is no global generator."""
    return Stream(derive(seed, *purpose))


class Stream:
    """A deterministic source of numbers. Draws advance it, so the order of draws is part of a task's definition."""

    def __init__(self, key: Seed) -> None:
        self._bits = np.random.Philox(_Key(np.frombuffer(key[:16], dtype="<u8")))  # type: ignore[arg-type]  # NumPy's stub

    def words(self, count: int) -> NDArray[np.uint64]:
        """Uniform 64-bit integers."""
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)

    def integers(self, bound: int, count: int) -> NDArray[np.int64]:
        """Uniform in `[0, bound)`, with replacement; off from uniform by less than bound/2³²."""
        if not 0 < bound <= 1 << 31:
            raise ValueError(f"bound must be from 1 to 2³¹, got {bound}")
        high = self.words(count) >> np.uint64(32)
        return ((high * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Uniform in [0, 1): multiples of 2⁻⁵³."""
        return (self.words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, count: int) -> NDArray[np.float64]:
        """Mean 0, variance 1, nearly normal: the sum of twelve uniforms less six, an exact integer until scaled.

        Box and Muller's method would need `log` and `cos`, whose last bits differ between machines. Tails end at 6.
        """
        halves = self.words(6 * count).view(np.uint32).reshape(count, 12)
        sums: NDArray[np.int64] = halves.sum(axis=1, dtype=np.int64)
        return sums.astype(np.float64) * 2.0**-32 - (6.0 - 6.0 * 2.0**-32)

    def permutation(self, count: int) -> NDArray[np.int64]:
        """A uniform permutation of `range(count)`."""
        return np.argsort(self.words(count), kind="stable").astype(np.int64)

    def sample(self, population: int, count: int) -> NDArray[np.int64]:
        """`count` distinct members of `range(population)`."""
        if not 0 <= count <= population:
            raise ValueError(f"cannot draw {count} distinct members of {population}")
        return self.permutation(population)[:count]


class _Key(ISeedSequence):
    """Hands a key to Philox as it is. `Philox(key=…)` gives the same stream, but asks the system for a seed that it does not use,
    and takes three times as long."""

    def __init__(self, key: NDArray[np.uint64]) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[np.uint64]:
        assert (n_words, dtype) == (2, np.uint64)
        return self._key


def _tagged(part: str | int | bytes) -> bytes:
    match part:
        case bytes():
            tag, raw = b"b", part
        case str():
            tag, raw = b"s", part.encode()
        case int() if not isinstance(part, bool):
            tag, raw = b"i", part.to_bytes(16, "big", signed=True)
        case _:
            raise TypeError(f"a seed or purpose must be bytes, str or int, got {type(part).__name__}")
    return tag + len(raw).to_bytes(4, "big") + raw
