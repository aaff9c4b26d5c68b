"""Named random streams: pinned by their definition, without bias, and no two names alike."""

import hashlib
import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from troth.crypto.streams import Seed, Stream, derive, stream

PROPERTY = settings(max_examples=200, deadline=None, derandomize=True)
PARTS = st.one_of(st.text(max_size=4), st.binary(max_size=4), st.integers(-(2**127), 2**127 - 1), st.integers(-3, 3))
NAMES = st.lists(PARTS, min_size=1, max_size=4)


class FixedStream(Stream):
    """A stream whose words are given: what a distribution makes of the smallest and the largest ones."""

    def __init__(self, word: int) -> None:
        self.word = word

    def words(self, count: int) -> NDArray[np.uint64]:
        return np.full(count, self.word, dtype=np.uint64)


LOWEST, HIGHEST = FixedStream(0), FixedStream(2**64 - 1)


# --------------------------------------------------------------------------------------------------------------- names


def test_derive_by_hand() -> None:
    """The bytes that are hashed, written out."""
    expected = hashlib.sha256(
        b"troth/stream/1"
        + (b"b" + b"\x00\x00\x00\x02" + b"\x01\x02")
        + (b"s" + b"\x00\x00\x00\x05" + b"batch")
        + (b"i" + b"\x00\x00\x00\x10" + b"\xff" * 15 + b"\xfe")
    ).digest()
    assert derive(b"\x01\x02", "batch", -2) == expected


def test_no_two_names_run_together() -> None:
    names: list[tuple[str | int | bytes, ...]] = [
        (),
        ("",),
        ("", ""),
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        ("a", "b", "c"),
        (b"abc",),
        (b"ab", b"c"),
        ("ab", b"c"),
        (b"ab", "c"),
        ("1",),
        (b"1",),
        (1,),
        (49,),
        (b"\x01",),
        ((1).to_bytes(16, "big"),),
        (-1,),
        (255,),
        (2**127 - 1,),
        (-(2**127),),
        ("a\x00",),
        ("as\x00\x00\x00\x01b",),
        ("a", "b"),
    ]
    for one, other in combinations(names, 2):
        assert derive(0, *one) != derive(0, *other), (one, other)


@PROPERTY
@given(NAMES, NAMES)
def test_different_names_have_different_keys(one: list[str | int | bytes], other: list[str | int | bytes]) -> None:
    typed_one, typed_other = [(type(part), part) for part in one], [(type(part), part) for part in other]
    seeds = [derive(0, *one), derive(0, *other)]
    assert (seeds[0] == seeds[1]) == (typed_one == typed_other)


def test_the_seed_is_a_part_too() -> None:
    seeds = [derive(0), derive(1), derive(b"\x00"), derive(b""), derive(derive(0)), derive(0, derive(0))]
    assert len(set(seeds)) == len(seeds)
    assert {len(seed) for seed in seeds} == {32}


@pytest.mark.parametrize("number", [2**127, -(2**127) - 1])
def test_numbers_that_do_not_fit_are_refused(number: int) -> None:
    with pytest.raises(OverflowError):
        derive(0, number)


def test_streams_of_different_purposes_are_unrelated() -> None:
    """Their correlation is that of independent samples, 1/√n."""
    one, other = stream(5, "attack", 1).normal(20_000), stream(5, "attack", 2).normal(20_000)
    assert abs(float(np.corrcoef(one, other)[0, 1])) < 5 / math.sqrt(20_000)


# --------------------------------------------------------------------------------------------------------------- words


def philox(key: tuple[int, int], count: int) -> list[int]:
    """Philox4x64-10 as published (Salmon et al. 2011), counting blocks from 1 as NumPy does."""
    mask, words = 2**64 - 1, list[int]()
    for block in range(1, -(-count // 4) + 1):
        (k0, k1), (x0, x1, x2, x3) = key, (block, 0, 0, 0)
        for _ in range(10):
            p0, p1 = 0xD2E7470EE14C6C93 * x0, 0xCA5A826395121157 * x2
            x0, x1, x2, x3 = (p1 >> 64) ^ x1 ^ k0, p1 & mask, (p0 >> 64) ^ x3 ^ k1, p0 & mask
            k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
        words += [x0, x1, x2, x3]
    return words[:count]


@pytest.mark.parametrize("seed", [0, 1, b"seed"])
def test_words_are_those_of_philox(seed: int | bytes) -> None:
    """Against the definition: if NumPy ever changed its generator, this would name the culprit."""
    digest = derive(seed, "words")
    key = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")
    assert stream(seed, "words").words(11).tolist() == philox(key, 11)


def test_draws_advance_the_stream() -> None:
    at_once = stream(1, "x").words(30)
    drawn = stream(1, "x")
    assert np.array_equal(np.concatenate([drawn.words(7), drawn.words(0), drawn.words(23)]), at_once)
    assert not np.array_equal(drawn.words(30), at_once)


def test_the_same_name_gives_the_same_numbers() -> None:
    assert np.array_equal(stream(1, "x").normal(50), Stream(derive(1, "x")).normal(50))
    assert not np.array_equal(stream(1, "x").normal(50), stream(1, "y").normal(50))


def test_formats() -> None:
    drawn = stream(2)
    assert drawn.words(3).dtype == np.uint64
    assert drawn.uniform(3).dtype == drawn.normal(3).dtype == np.float64
    assert drawn.integers(5, 3).dtype == drawn.permutation(3).dtype == drawn.sample(5, 3).dtype == np.int64


@pytest.mark.parametrize("draw", ["words", "uniform", "normal", "permutation"])
def test_nothing_and_one(draw: str) -> None:
    for count in (0, 1):
        assert getattr(stream(3), draw)(count).shape == (count,)
    assert stream(3).integers(9, 0).shape == (0,)
    assert stream(3).sample(9, 0).shape == (0,)


# ------------------------------------------------------------------------------------------------------- distributions


def assert_mean(values: NDArray[np.float64] | NDArray[np.int64], mean: float, variance: float) -> None:
    """Within five standard deviations of a mean of so many; the seeds are fixed, so this holds for ever or never."""
    assert abs(float(values.mean()) - mean) < 5 * math.sqrt(variance / len(values))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_uniform(seed: int) -> None:
    values = stream(seed, "uniform").uniform(100_000)
    assert_mean(values, 1 / 2, 1 / 12)
    assert_mean((values - 1 / 2) ** 2, 1 / 12, 1 / 180)
    assert_mean(values[1:] * values[:-1], 1 / 4, 7 / 144)  # neighbours are independent
    assert np.array_equal(np.floor(values * 2.0**53), values * 2.0**53)


def test_uniform_is_below_one() -> None:
    assert LOWEST.uniform(1).tolist() == [0.0]
    assert HIGHEST.uniform(1).tolist() == [1.0 - 2.0**-53]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_normal(seed: int) -> None:
    """The fourth moment is that of twelve uniforms, 3 − 6/(5·12) = 2.9; a normal one has 3."""
    values = stream(seed, "normal").normal(100_000)
    assert_mean(values, 0.0, 1.0)
    assert_mean(values**2, 1.0, 1.9)
    assert_mean(values**3, 0.0, 15.0)
    assert_mean(values**4, 2.9, 96.0)
    assert float(np.abs(values).max()) < 6


def test_normal_is_centred_exactly() -> None:
    """The smallest and the largest value are opposite to the last bit, and so are the values of opposite words."""
    assert HIGHEST.normal(2).tolist() == [6.0 - 6.0 * 2.0**-32] * 2
    assert LOWEST.normal(2).tolist() == [-(6.0 - 6.0 * 2.0**-32)] * 2
    for word in stream(4).words(100).tolist():
        assert FixedStream(word).normal(1)[0] == -FixedStream(2**64 - 1 - word).normal(1)[0]


def test_normal_is_an_integer_until_scaled() -> None:
    """Sums of integers, so no order of addition and no rounding can make a difference between machines."""
    scaled = stream(5).normal(1000) * 2.0**32
    assert np.array_equal(scaled, np.round(scaled))


@pytest.mark.parametrize("bound", [1, 2, 6, 1000, 2**31 - 1, 2**31])
def test_integers(bound: int) -> None:
    values = stream(6, bound).integers(bound, 50_000)
    assert values.min() >= 0
    assert values.max() < bound
    assert_mean(values / bound, (bound - 1) / bound / 2, 1 / 12)
    assert LOWEST.integers(bound, 1).tolist() == [0]
    assert HIGHEST.integers(bound, 1).tolist() == [bound - 1]


def test_integers_are_equally_frequent() -> None:
    counts = np.bincount(stream(7).integers(6, 60_000), minlength=6)
    assert counts.sum() == 60_000
    assert np.abs(counts - 10_000).max() < 5 * math.sqrt(60_000 * 5 / 36)


@pytest.mark.parametrize("bound", [0, -1, 2**31 + 1, 2**40])
def test_integers_need_a_bound_in_range(bound: int) -> None:
    with pytest.raises(ValueError, match=f"bound must be from 1 to 2³¹, got {bound}"):
        stream(0).integers(bound, 1)


@PROPERTY
@given(st.integers(0, 2**32), st.integers(0, 200))
def test_permutation_has_every_member_once(seed: int, count: int) -> None:
    assert sorted(stream(seed).permutation(count).tolist()) == list(range(count))


def test_permutations_are_equally_frequent() -> None:
    drawn = stream(8)
    seen = [tuple(drawn.permutation(3).tolist()) for _ in range(6000)]
    counts = [seen.count(order) for order in set(seen)]
    assert len(counts) == 6
    assert max(abs(count - 1000) for count in counts) < 5 * math.sqrt(6000 * 5 / 36)


@PROPERTY
@given(st.integers(0, 2**32), st.integers(1, 100), st.data())
def test_sample_is_distinct(seed: int, population: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, population))
    drawn = stream(seed).sample(population, count).tolist()
    assert len(drawn) == len(set(drawn)) == count
    assert all(0 <= member < population for member in drawn)


@pytest.mark.parametrize(("population", "count"), [(3, 4), (0, 1)])
def test_sample_cannot_exceed_the_population(population: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"cannot draw {count} distinct members of {population}"):
        stream(0).sample(population, count)


def test_a_key_is_thirty_two_bytes_of_which_sixteen_count() -> None:
    """Philox takes 128 bits of the digest: two keys that differ in the first half give different streams."""
    key = derive(0)
    other_tail, other_head = Seed(key[:16] + bytes(16)), Seed(bytes(16) + key[16:])
    assert np.array_equal(Stream(key).words(4), Stream(other_tail).words(4))
    assert not np.array_equal(Stream(key).words(4), Stream(other_head).words(4))
