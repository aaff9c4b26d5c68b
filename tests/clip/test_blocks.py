"""Blocks of codes: every rule of the format and of rounding, against integers, for the definition, compiled loops and devices."""

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.clip.nasty import PROPERTY, finite, moderate, seeds
from troth.clip import blocks, kernels
from troth.clip.blocks import BLOCK, FLOAT32, INT8, INT16, Blocks, Code, uniforms
from troth.clip.exact import flush_in_place, ordinary

KEY = bytes(range(8))
LARGEST = float(np.finfo(np.float32).max)
both = pytest.mark.parametrize("form", [INT8, INT16], ids=lambda form: form.name)
# Around the ends of blocks
sizes = st.one_of(st.integers(1, 700), st.sampled_from([1, 254, 255, 256, 509, 510, 511, 765, 5000]))


@pytest.fixture(autouse=True, scope="module", params=["definition", "loops", "tensors"])
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    with coded_by(request.param):
        yield


@contextmanager
def coded_by(way: str) -> Iterator[None]:
    """The definition, compiled loops, or the operations for devices, here on CPU tensors."""
    loops = mock.patch.object(kernels, "compiled", return_value=way == "loops")
    with loops, mock.patch.object(blocks, "elsewhere", return_value=way in ("tensors", "cuda")):
        yield


def drawn(size: int, seed: int) -> NDArray[np.float32]:
    """Numbers as gradients have them, or of all magnitudes side by side, or a few among zeros; without subnormals."""
    numbers_D = (moderate, finite, few)[seed % 3](size, seed)
    flush_in_place(numbers_D)
    return numbers_D


def few(size: int, seed: int) -> NDArray[np.float32]:
    """Zeros of both signs, and a few numbers of all magnitudes."""
    zeros_D = np.array([0.0, -0.0], np.float32)[np.arange(size) % 2]
    found: NDArray[np.float32] = np.where(np.random.default_rng(seed).random(size) < 0.005, finite(size, seed), zeros_D)
    return found


def rounded(form: Blocks, numbers_D: NDArray[np.float32], key: bytes = b"") -> NDArray[np.float32]:
    return form.round(torch.from_numpy(numbers_D), key).numpy()


def packed(form: Blocks, numbers_D: NDArray[np.float32]) -> bytes:
    return bytes(form.pack(torch.from_numpy(numbers_D)))


def same(one_D: NDArray[np.float32], other_D: NDArray[np.float32]) -> bool:
    """Bit for bit: a zero has no sign, or the other one's."""
    return np.array_equal(one_D.view(np.uint32), other_D.view(np.uint32))


def meant(form: Blocks, raw: bytes) -> list[Fraction]:
    """What bytes stand for, by the format's definition alone."""
    width, numbers = form.bits // 8, []
    for first in range(0, len(raw), 1 + width * BLOCK):
        exponent, body = raw[first], raw[first + 1 : first + 1 + width * BLOCK]
        codes = struct.unpack(f"<{len(body) // width}{'b' if width == 1 else 'h'}", body)
        numbers += [code * Fraction(2) ** (exponent - 126) for code in codes]
    return numbers


def block(form: Blocks, exponent: int, *codes: int) -> bytes:
    return struct.pack(f"<B{len(codes)}{'b' if form.bits == 8 else 'h'}", exponent, *codes)


# Packing


@both
@PROPERTY
@given(size=sizes, seed=seeds, nearest=st.booleans())
def test_rounded_numbers_come_back(form: Blocks, size: int, seed: int, nearest: bool) -> None:
    numbers_D = rounded(form, drawn(size, seed), b"" if nearest else KEY)
    raw = packed(form, numbers_D)
    assert len(raw) == form.length(size)
    assert form.count(len(raw)) == size
    assert meant(form, raw) == [Fraction(number) for number in numbers_D.tolist()]
    found_D = form.unpack(memoryview(raw))
    assert found_D is not None
    assert same(found_D, numbers_D)
    assert packed(form, found_D) == raw


@both
@PROPERTY
@given(size=sizes, seed=seeds, wounds=st.integers(1, 3))
def test_what_is_taken_has_one_form(form: Blocks, size: int, seed: int, wounds: int) -> None:
    """Of any bytes: refused, or packed again they are the same bytes. So no two strings stand for the same numbers."""
    chance = np.random.default_rng(seed)
    raw = bytearray(packed(form, rounded(form, drawn(size, seed), KEY)))
    for _ in range(wounds):
        raw[chance.integers(len(raw))] = chance.integers(256)
    for some in (bytes(raw), chance.bytes(len(raw)), bytes(raw[: chance.integers(len(raw))])):
        found_D = form.unpack(memoryview(some))
        if found_D is not None:
            assert ordinary(found_D)
            assert packed(form, found_D) == some


@both
def test_one_form_of_every_small_block(form: Blocks) -> None:
    """All exponents beside codes at the edges, and some beside all codes: what is taken stands for different numbers."""
    most = form.most
    edges = [-most - 1, -most, -most // 2, -most // 2 - 1, -1, 0, 1, most // 2, most // 2 + 1, most - 1, most]
    taken: dict[Fraction, bytes] = {}
    for exponent in range(256):
        for code in range(-128, 128) if exponent in (0, 1, 200) else edges:
            raw = block(form, exponent, code)
            found_D = form.unpack(memoryview(raw))
            # The rule: the least exponent that is there, and among larger ones that which the largest code needs.
            right = abs(code) <= most and exponent <= form.highest and (exponent == 0 or 2 * abs(code) > most)
            assert (found_D is not None) is right
            if found_D is not None:
                value = Fraction(float(found_D[0]))
                assert value == code * Fraction(2) ** (exponent - 126)
                assert taken.setdefault(value, raw) == raw


@both
@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_each_way_to_write_it_wrong_is_refused(form: Blocks, blocks: int) -> None:
    """In the last block, behind others that are right."""
    most, before = form.most, block(form, 100, form.most, *[1] * (BLOCK - 1)) * blocks
    right = block(form, 100, 3, -most, 0)
    assert form.unpack(memoryview(before + right)) is not None
    wrong = {
        "the least number of the type has no negative": block(form, 100, 3, -most - 1, most),
        "exponent too large by one": block(form, form.highest + 1, most),
        "exponent of no float32": block(form, 255, most),
        "a smaller exponent holds them": block(form, 101, most // 2, -(most // 2)),
        "and these at half the code": block(form, 1, 1),
        "zeros have the least exponent": block(form, 1, 0, 0, 0),
        "an exponent alone": block(form, 0),
    }
    for reason, raw in wrong.items():
        assert form.unpack(memoryview(before + raw)) is None, reason
    assert form.unpack(memoryview(before + block(form, form.highest, most))) is not None
    assert form.unpack(memoryview(before + block(form, 1, most // 2 + 1))) is not None
    assert form.unpack(memoryview(before + block(form, 0, 1))) is not None


@both
def test_lengths_that_are_none_are_refused(form: Blocks) -> None:
    whole = packed(form, rounded(form, moderate(3 * BLOCK, 1)))
    lengths = {form.length(count) for count in range(3 * BLOCK + 1)}
    assert len(lengths) == 3 * BLOCK + 1
    for length in range(len(whole) + 1):
        found_D = form.unpack(memoryview(whole[:length]))
        if length not in lengths:
            assert found_D is None
        else:
            assert form.length(form.count(length)) == length


@both
def test_a_part_may_be_empty(form: Blocks) -> None:
    nothing_D = np.empty(0, np.float32)
    assert same(rounded(form, nothing_D), nothing_D)
    assert packed(form, nothing_D) == b""
    found_D = form.unpack(memoryview(b""))
    assert found_D is not None
    assert same(found_D, nothing_D)


@both
def test_bytes_are_read_where_they_lie(form: Blocks) -> None:
    """At an odd place, read-only, and nothing of them is kept."""
    numbers_D = rounded(form, moderate(600, 2), KEY)
    raw = bytearray(b"x" + packed(form, numbers_D))
    for view in (memoryview(raw)[1:], memoryview(bytes(raw))[1:]):
        found_D = form.unpack(view)
        assert found_D is not None
        assert same(found_D, numbers_D)
    raw[:] = bytes(len(raw))
    assert found_D is not None
    assert same(found_D, numbers_D)


@both
def test_numbers_that_were_not_rounded_are_not_packed(form: Blocks) -> None:
    with pytest.raises(AssertionError, match="only rounded numbers"):
        packed(form, np.array([1.0, 1e-9], np.float32))


# Rounding


@both
@PROPERTY
@given(size=sizes, seed=seeds, nearest=st.booleans())
def test_errors_are_below_a_quantum(form: Blocks, size: int, seed: int, nearest: bool) -> None:
    """Of the least power of two that reaches the largest number of a block, in exact arithmetic."""
    numbers_D = drawn(size, seed)
    found_D = rounded(form, numbers_D, b"" if nearest else KEY)
    assert ordinary(found_D)
    assert not np.signbit(found_D[found_D == 0]).any()
    for first in range(0, size, BLOCK):
        block_C = [Fraction(number) for number in numbers_D[first : first + BLOCK].tolist()]
        largest = max(map(abs, block_C))
        exponent = next(
            (e for e in range(form.highest) if largest <= form.most * Fraction(2) ** (e - 126)), form.highest
        )
        quantum = Fraction(2) ** (exponent - 126)
        assert (form.quanta(numbers_D)[first : first + BLOCK] == float(quantum)).all()
        for number, result in zip(block_C, map(Fraction, found_D[first : first + BLOCK].tolist()), strict=True):
            assert (result / quantum).denominator == 1
            assert abs(result) <= form.most * quantum
            if abs(number) > form.most * quantum:
                assert result == math.copysign(form.most * quantum, number)
            elif nearest:
                assert abs(result - number) <= quantum / 2
                assert abs(result - number) < quantum / 2 or result / quantum % 2 == 0
            else:
                assert abs(result - number) < quantum
                assert result * number >= 0


@both
@PROPERTY
@given(size=sizes, seed=seeds)
def test_rounded_numbers_stay(form: Blocks, size: int, seed: int) -> None:
    """Rounding what was rounded changes nothing, by whatever chance."""
    for numbers_D in (rounded(form, drawn(size, seed)), rounded(form, drawn(size, seed), KEY)):
        assert same(rounded(form, numbers_D), numbers_D)
        assert same(rounded(form, numbers_D, b"\xff" * 8), numbers_D)


@both
@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_at_the_edges(form: Blocks, sign: int) -> None:
    most, least = form.most, 2.0**-126
    highest = most * 2.0 ** (form.highest - 126)
    for key in (b"", KEY):
        for number, right in (
            (0.0, 0.0),
            (LARGEST, highest),
            (highest, highest),
            (least, least),
            (2 * least, 2 * least),
        ):
            found_D = rounded(form, np.array([sign * number], np.float32), key)
            assert same(found_D, np.array([sign * right or 0.0], np.float32))
    # Exactly the largest code still has the smaller quantum; a float32 more has not.
    fits = np.array([sign * most], np.float32)
    for numbers_D, quantum in ((fits, 1.0), (np.nextafter(fits, np.float32(sign * np.inf)), 2.0)):
        assert form.quanta(numbers_D).tolist() == [quantum]


def test_the_highest_is_what_the_format_says() -> None:
    assert (INT8.most * 2.0 ** (INT8.highest - 126), INT8.most) == (127 * 2.0**120, 127)
    assert (INT16.most * 2.0 ** (INT16.highest - 126), INT16.most) == (32767 * 2.0**112, 32767)
    assert INT8.most * 2.0 ** (INT8.highest - 126) < INT16.most * 2.0 ** (INT16.highest - 126)  # no aggregate is beyond


def test_a_block_whose_largest_code_was_rounded_down_has_a_smaller_exponent() -> None:
    """63 and a bit: with luck 63, which is 126 of the next smaller quantum. Else its owner could choose between two forms."""
    found = {packed(INT8, INT8.rounded(np.array([63.6], np.float32), np.array([u])))[:2] for u in (0.0, 0.39, 0.5)}
    assert found == {block(INT8, 125, 126), block(INT8, 126, 64)}


def test_numbers_far_below_a_quantum_are_zero() -> None:
    """The smallest float32 beside the largest, with both signs: no chance lets millions of them become a quantum each."""
    numbers_D = np.array([LARGEST, 2.0**-126, -(2.0**-126)], np.float32)
    for uniform in (0.0, 1 - 2.0**-24):
        assert INT8.rounded(numbers_D, np.full(3, uniform))[1:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@both
def test_what_is_not_finite_is_not_rounded(form: Blocks, number: float) -> None:
    for key in (b"", KEY):
        with pytest.raises(AssertionError, match="not finite"):
            rounded(form, np.array([1.0, number], np.float32), key)


@pytest.mark.parametrize("number", [0.3, -0.3, 1e-3, -1e-3, 41.75, -126.999, 2.0**-20])
def test_rounding_leaves_the_mean_as_it_is(number: float) -> None:
    """Over coordinates with one key, and over keys at one coordinate: within five deviations of the mean of so many."""
    numbers_D = np.full(200_000, number, np.float32)
    numbers_D[::BLOCK] = 127.0  # the quantum is 1 everywhere
    over_places_D = rounded(INT8, numbers_D, KEY)[numbers_D != 127.0]
    keys = (np.arange(2000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype("<u8")
    over_keys = np.array([rounded(INT8, numbers_D[:3], key.tobytes())[2] for key in keys])
    for found in (over_places_D, over_keys):
        exact, share = float(np.float32(number)), abs(number) % 1
        deviation = math.sqrt(share * (1 - share) / len(found))
        assert abs(found.mean(dtype=np.float64) - exact) <= 5 * deviation + 2.0**-24


# Public uniforms


def test_uniforms_are_uniform_and_differ_from_coordinate_to_coordinate_and_key_to_key() -> None:
    uniform_D = uniforms(KEY, 0, 1 << 18)
    assert np.array_equal(uniform_D * 2.0**24 % 1, np.zeros(1 << 18))
    assert 0 <= uniform_D.min() < 1e-4 < 1 - 1e-4 < uniform_D.max() < 1
    other_D = uniforms(b"\x01" + KEY[1:], 0, 1 << 18)
    counts = np.bincount((uniform_D * 256).astype(int), minlength=256)
    assert ((counts - 1024) ** 2 / 1024).sum() < 256 + 5 * math.sqrt(2 * 256)
    for one_D, two_D in ((uniform_D[1:], uniform_D[:-1]), (uniform_D[256:], uniform_D[:-256]), (uniform_D, other_D)):
        assert abs(np.corrcoef(one_D, two_D)[0, 1]) < 5 / math.sqrt(len(one_D))
    assert abs(uniform_D.mean() - 0.5) < 5 / math.sqrt(12 * len(uniform_D))


@pytest.mark.parametrize("start", [0, 1, 1000, (1 << 32) - 3, (1 << 32) + 5, 5 << 40])
def test_uniforms_go_by_the_coordinate_alone(start: int) -> None:
    """Also beyond 2³² coordinates; all eight bytes of the key count."""
    assert np.array_equal(uniforms(KEY, start, start + 9)[4:], uniforms(KEY, start + 4, start + 9))
    assert len(uniforms(KEY, start, start)) == 0
    assert not np.array_equal(uniforms(KEY, start, start + 9), uniforms(KEY, start + (1 << 32), start + 9 + (1 << 32)))
    for k in range(8):
        changed = bytes(byte ^ (i == k) for i, byte in enumerate(KEY))
        assert not np.array_equal(uniforms(KEY, start, start + 9), uniforms(changed, start, start + 9))


# Codes of a run


def test_a_run_in_float32_rounds_nothing() -> None:
    code, numbers_D = Code.known["float32"], torch.from_numpy(moderate(300, 1))
    assert code.round_row(numbers_D, KEY) is numbers_D
    assert code.round_center(numbers_D) is numbers_D
    assert (code.rounds_centers, code.rounding(numbers_D), code.grain) == (False, 0.0, 1)
    assert Code.known["int8"].rounding(numbers_D[:0]) == 0.0
    raw = code.rows.pack(numbers_D)
    assert (code.rows.length(300), code.rows.count(1200)) == (len(raw), 300)
    assert same(FLOAT32.unpack(raw), numbers_D.numpy())


@PROPERTY
@given(size=sizes, seed=seeds)
def test_a_run_in_codes(size: int, seed: int) -> None:
    code, numbers_D = Code.known["int8"], drawn(size, seed)
    row_D, center_D = code.round_row(torch.from_numpy(numbers_D), KEY), code.round_center(torch.from_numpy(numbers_D))
    assert same(row_D.numpy(), rounded(INT8, numbers_D, KEY))
    assert same(center_D.numpy(), rounded(INT16, numbers_D))
    quanta_D = np.repeat(code.quanta_of_blocks(center_D), BLOCK)[:size]
    assert np.array_equal(quanta_D, INT16.quanta(numbers_D))  # rounding to the nearest keeps them
    assert code.rounding(center_D) == pytest.approx(math.sqrt(math.fsum((quanta_D / 2) ** 2)), rel=1e-15)
    within_D = np.abs(numbers_D) <= INT16.most * quanta_D
    away = np.linalg.norm((center_D.numpy().astype(np.float64) - numbers_D)[within_D] / quanta_D.max())
    assert away <= code.rounding(center_D) / quanta_D.max() * (1 + 1e-9)


@pytest.mark.parametrize("cut", [0, 255, 510, 2550])
def test_parts_that_begin_at_the_grain_are_packed_as_the_whole(cut: int) -> None:
    code, numbers_D = Code.known["int8"], rounded(INT8, moderate(3000, 4), KEY)
    assert cut % code.grain == 0
    assert packed(INT8, numbers_D[:cut]) + packed(INT8, numbers_D[cut:]) == packed(INT8, numbers_D)
