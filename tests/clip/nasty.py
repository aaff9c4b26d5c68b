"""Vectors that hurt: every bit pattern a float32 can have, and numbers at the edges of the format."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)

EDGES = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0**-126,
        -(2.0**-126),
        2.0**-149,
        -(2.0**-149),
        3.4e38,
        -3.4e38,
        1e-38,
        1e-45,
        1.5e19,
        1e-20,
    ],
    dtype=np.float32,
)
BEYOND = np.array([np.inf, -np.inf, np.nan], dtype=np.float32)


def any_bits(size: int, seed: int) -> NDArray[np.float32]:
    """Numbers of random bits: all magnitudes alike, a few of them infinite, NaN or subnormal."""
    return np.random.default_rng(seed).integers(0, 1 << 32, size, dtype=np.uint32).view(np.float32)


def finite(size: int, seed: int) -> NDArray[np.float32]:
    """The same, finite, with edges among them."""
    numbers_D, chance = any_bits(size, seed), np.random.default_rng(seed + 1)
    numbers_D[~np.isfinite(numbers_D)] = 1.0
    edges_D = chance.choice(EDGES, size)
    return np.where(chance.random(size) < 0.2, edges_D, numbers_D)


def moderate(size: int, seed: int) -> NDArray[np.float32]:
    """Numbers of a gradient, over twelve orders of magnitude."""
    chance = np.random.default_rng(seed)
    return (chance.standard_normal(size) * 10.0 ** chance.integers(-9, 3, size)).astype(np.float32)


seeds = st.integers(0, 1 << 20)
# Around the sizes at which loops cut: strips, runs, lanes, chunks and halves.
sizes = st.one_of(
    st.integers(1, 70),
    st.sampled_from([255, 256, 257, 511, 512, 513, 1023, 1025, 8191, 8192, 8193, 16383, 16384, 16385]),
    st.sampled_from([(1 << 15) + 1, (1 << 16) - 1, (1 << 16) + 1, (1 << 17) + 3, (1 << 18) - 1, (1 << 18) + 77]),
)
