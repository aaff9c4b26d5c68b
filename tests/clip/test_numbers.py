"""Checks, flushing and norms of one vector, bit for bit against NumPy's."""

import math

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from tests.clip.nasty import BEYOND, PROPERTY, any_bits, finite, seeds, sizes
from troth.clip import kernels
from troth.clip.exact import exact_norm, flush_in_place, has_subnormals, norm_by_numpy, ordinary, ordinary_norm

LANES, DEPTH = 1 << 14, 16


def odd(numbers_D: NDArray[np.float32]) -> tuple[bool, bool]:
    magnitudes_D = numbers_D.view(np.uint32) & 0x7FFFFFFF
    return bool(((magnitudes_D > 0) & (magnitudes_D < 0x00800000)).any()), bool((magnitudes_D >= 0x7F800000).any())


@PROPERTY
@given(sizes, seeds)
def test_odd_numbers_are_seen(size: int, seed: int) -> None:
    for numbers_D in (any_bits(size, seed), finite(size, seed), np.ones(size, np.float32)):
        assert kernels.odd_numbers(numbers_D) == odd(numbers_D)


@pytest.mark.parametrize("size", [1, 5, 16, 1000, (1 << 18) + 5])
@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_a_single_odd_number_is_seen_wherever_it_stands(size: int, place: float) -> None:
    for number in [*BEYOND, np.float32(1e-45), np.float32(-1e-38)]:
        numbers_D = np.zeros(size, np.float32)
        numbers_D[int(place * (size - 1))] = number
        endless = not np.isfinite(number)
        assert kernels.odd_numbers(numbers_D) == (not endless, bool(endless))
        assert kernels.exact_norm(numbers_D, LANES, DEPTH, only_ordinary=True) is None


@PROPERTY
@given(sizes, seeds)
def test_flushing_leaves_the_bits_that_numpy_leaves(size: int, seed: int) -> None:
    for numbers_D in (any_bits(size, seed), finite(size, seed)):
        bits_D = numbers_D.view(np.uint32).copy()
        bits_D[(bits_D & 0x7F800000) == 0] = 0
        kernels.flush(numbers_D)
        assert np.array_equal(numbers_D.view(np.uint32), bits_D)


@PROPERTY
@given(sizes, seeds)
def test_the_norm_has_the_bits_of_the_reference(size: int, seed: int) -> None:
    numbers_D = finite(size, seed)
    assert size <= 64 or kernels.exact_norm(numbers_D, LANES, DEPTH) == norm_by_numpy(numbers_D)
    right = None if any(odd(numbers_D)) else kernels.exact_norm(numbers_D, LANES, DEPTH)
    assert kernels.exact_norm(numbers_D, LANES, DEPTH, only_ordinary=True) == right


def test_millions_of_numbers_have_the_norm_of_the_reference() -> None:
    for seed in range(3):
        numbers_D = finite(4_000_003, seed)
        assert kernels.exact_norm(numbers_D, LANES, DEPTH) == norm_by_numpy(numbers_D)
    numbers_D[7], numbers_D[2_000_000] = np.inf, 1.0
    assert kernels.exact_norm(numbers_D, LANES, DEPTH) == math.inf
    numbers_D[8] = np.nan
    assert math.isnan(kernels.exact_norm(numbers_D, LANES, DEPTH) or 0.0)


def test_large_vectors_take_either_way_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read-only, scattered and unaligned ones too."""
    plain_D = finite(kernels.LARGE + 9, 1)
    kernels.flush(plain_D)
    unaligned = np.frombuffer(b"x" + plain_D.tobytes(), np.uint8)[1:].view("<f4")
    assert not unaligned.flags.aligned
    vectors = [
        plain_D,
        np.repeat(plain_D, 3)[::3],
        np.frombuffer(plain_D.tobytes(), "<f4"),
        unaligned,
        finite(1 << 18, 3),
    ]
    compiled = [(exact_norm(v), ordinary(v), ordinary_norm(v), has_subnormals(v)) for v in vectors]
    flushed = [v.copy() for v in vectors]
    for vector_D in flushed:
        flush_in_place(vector_D)
    monkeypatch.setattr(kernels, "compiled", lambda _: False)
    assert compiled == [(exact_norm(v), ordinary(v), ordinary_norm(v), has_subnormals(v)) for v in vectors]
    again = [v.copy() for v in vectors]
    for vector_D in again:
        flush_in_place(vector_D)
    assert all(np.array_equal(a.view(np.uint32), b.view(np.uint32)) for a, b in zip(flushed, again, strict=True))
