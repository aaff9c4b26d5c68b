"""Every way to code numbers has the bits of the definition, and refuses what it refuses."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from tests.clip.nasty import PROPERTY, finite, moderate, seeds
from tests.clip.test_blocks import KEY, LARGEST, both, coded_by, drawn, same
from tests.vectors import codes
from troth.clip import block_kernels, block_tensors
from troth.clip.blocks import BLOCK, INT8, Blocks, Code, uniforms
from troth.clip.exact import flush_in_place

LEAST = 2.0**-126
CHUNK = BLOCK << 10
ways = pytest.mark.parametrize("way", ["loops", "tensors", *(["cuda"] if torch.cuda.is_available() else [])])
sizes = st.one_of(st.integers(0, 700), st.sampled_from([0, 1, 254, 255, 256, 509, 510, 511, 5000]))


def hostile(size: int, seed: int) -> NDArray[np.float32]:
    """Block by block one way to be awkward."""
    chance, numbers_D = np.random.default_rng(seed), np.zeros(size, np.float32)
    for first in range(0, size, BLOCK):
        block_C = numbers_D[first : first + BLOCK]
        block_C[:] = WAYS[chance.integers(len(WAYS))](len(block_C), chance)
    return numbers_D


def among(*numbers: float) -> Callable[[int, np.random.Generator], NDArray[np.float32]]:
    return lambda size, chance: chance.choice(np.array(numbers, np.float32), size)


def one_huge(size: int, chance: np.random.Generator) -> NDArray[np.float32]:
    numbers_C = moderate(size, int(chance.integers(1 << 20)))
    numbers_C[chance.integers(size)] = chance.choice([LARGEST, -LARGEST, 1e30])
    return numbers_C


def at_edges(size: int, chance: np.random.Generator) -> NDArray[np.float32]:
    """Codes and halves of codes of one quantum, and their neighbours: largest codes, ties, and those that lose their exponent."""
    edges = [0.5, 1.5, 2.5, 62.5, 63, 63.5, 64, 126.5, 127, 127.5, 16383.5, 16384, 32766.5, 32767]
    numbers_C: NDArray[np.float32] = (chance.choice(edges, size) * 2.0 ** float(chance.integers(-110, 110))).astype(
        np.float32
    )
    numbers_C[1:] *= chance.choice([1, 0.5, 0.25, 0.0], size)[1:]
    toward_C = chance.choice(np.array([np.inf, 0, -np.inf], np.float32), size)
    np.copyto(numbers_C, np.nextafter(numbers_C, toward_C), where=chance.random(size) < 0.5)
    numbers_C *= chance.choice([-1, 1], size)
    flush_in_place(numbers_C)
    return numbers_C


WAYS: list[Callable[[int, np.random.Generator], NDArray[np.float32]]] = [
    among(0.0),
    among(-0.0),
    among(LARGEST),
    among(LARGEST, -LARGEST, 2.0**127, LEAST, -0.0),
    among(LEAST, -LEAST, 2 * LEAST, 3 * LEAST, 0.0),
    among(127.0, np.nextafter(np.float32(127), np.float32(128)), 2.0**-20, -(2.0**-24), 2.0**-25),
    among(1.0, -1.0),
    one_huge,
    at_edges,
    lambda size, chance: drawn(size, int(chance.integers(1 << 20))),
]


def by_definition(form: Blocks, numbers_D: NDArray[np.float32], key: bytes) -> tuple[NDArray[np.float32], bytes]:
    with coded_by("definition"):
        rounded_D = form.rounded(numbers_D, uniforms(key, 0, len(numbers_D)) if key else None)
        return rounded_D, bytes(form.pack(torch.from_numpy(rounded_D)))


def place_of(way: str) -> torch.device:
    return torch.device("cuda" if way == "cuda" else "cpu")


def there(way: str, numbers_D: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(numbers_D).to(place_of(way))


def here(numbers_D: Tensor) -> NDArray[np.float32]:
    return numbers_D.cpu().numpy()


def check(way: str, form: Blocks, numbers_D: NDArray[np.float32], key: bytes) -> None:
    """Rounded, packed, both at once, and unpacked."""
    right_D, raw = by_definition(form, numbers_D, key)
    with coded_by(way):
        given_D = there(way, numbers_D)
        assert same(here(form.round(given_D, key)), right_D)
        found_D, packed = form.round_and_pack(given_D, key)
        assert same(here(found_D), right_D)
        assert packed == raw
        assert form.pack(found_D) == raw
        again_D = form.unpack(memoryview(raw))
        assert again_D is not None
        assert same(again_D, right_D)
        there_D = form.unpack_to(memoryview(raw), place_of(way))
        assert there_D is not None
        assert same(here(there_D), right_D)


@ways
@both
@PROPERTY
@given(size=sizes, seed=seeds, nearest=st.booleans())
def test_bits_are_those_of_the_definition(way: str, form: Blocks, size: int, seed: int, nearest: bool) -> None:
    numbers_D = hostile(size, seed)
    check(way, form, numbers_D, b"" if nearest else np.random.default_rng(seed).bytes(8))
    with coded_by(way):
        given_D = there(way, numbers_D)
        exponent_B, quanta_D = form.exponents(given_D), form.quanta(given_D)
    with coded_by("definition"):
        assert np.array_equal(exponent_B, form.exponents(numbers_D))
        assert np.array_equal(quanta_D, form.quanta(numbers_D))


@ways
@both
@pytest.mark.parametrize("size", [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 700])
def test_many_chunks(way: str, form: Blocks, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And some blocks of every way to be awkward."""
    monkeypatch.setattr(block_tensors, "_AT_ONCE", CHUNK)
    for key in (b"", KEY):
        check(way, form, hostile(size, size), key)


@ways
@both
@PROPERTY
@given(size=st.integers(1, 600), seed=seeds, wounds=st.integers(1, 3))
def test_the_same_bytes_are_taken_and_refused(way: str, form: Blocks, size: int, seed: int, wounds: int) -> None:
    chance, raw = np.random.default_rng(seed), bytearray(by_definition(form, hostile(size, seed), KEY)[1])
    for _ in range(wounds):
        raw[chance.integers(len(raw))] = chance.choice([int(chance.integers(256)), 0, 1, 127, 128, 129, 247, 255])
    for some in (bytes(raw), chance.bytes(len(raw)), bytes(raw[: chance.integers(len(raw))])):
        with coded_by("definition"):
            right_D = form.unpack(memoryview(some))
        with coded_by(way):
            found_D = form.unpack_to(memoryview(b"x" + some)[1:], place_of(way))
        assert (found_D is None) is (right_D is None)
        assert found_D is None or right_D is None or same(here(found_D), right_D)


@ways
@both
def test_a_fault_in_any_chunk_is_found(way: str, form: Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_tensors, "_AT_ONCE", CHUNK)
    numbers_D = moderate(2 * CHUNK + 10, 3)
    flush_in_place(numbers_D)
    right_D, raw = by_definition(form, numbers_D, KEY)
    with coded_by(way):
        for place in (0, CHUNK + 1, 2 * CHUNK + 9):
            spoilt_D, changed_D, wrong = numbers_D.copy(), right_D.copy(), bytearray(raw)
            spoilt_D[place] = np.nan
            changed_D[place] = np.nextafter(np.abs(right_D[place // BLOCK * BLOCK :][:BLOCK]).max(), np.float32(0))
            wrong[form.length(place // BLOCK * BLOCK)] = 255
            with pytest.raises(AssertionError, match="not finite"):
                form.round(there(way, spoilt_D), KEY)
            with pytest.raises(AssertionError, match="only rounded numbers"):
                form.pack(there(way, changed_D))
            assert form.unpack_to(memoryview(wrong), place_of(way)) is None


@ways
@both
def test_what_is_not_finite_is_not_packed(way: str, form: Blocks) -> None:
    with coded_by(way):
        for number in (np.nan, np.inf, -np.inf, LARGEST):
            with pytest.raises(AssertionError, match="only rounded numbers"):
                form.pack(torch.tensor([1.0, number], device=place_of(way)))


@pytest.mark.parametrize("place", [0, 5, (1 << 32) - 300, (1 << 32) - 255, (1 << 32) - 1, 1 << 32, (3 << 32) - 77])
def test_chance_goes_by_the_coordinate(place: int) -> None:
    """Also where 2³² coordinates end within a block."""
    numbers_D, uniform_D = drawn(510, 3), uniforms(KEY, place, place + 510)
    assert same(block_kernels.rounded(INT8, numbers_D, KEY, place), INT8.rounded(numbers_D, uniform_D))
    in_quanta_D = numbers_D / INT8.quanta(numbers_D)
    codes_BC = block_tensors._away(INT8, torch.from_numpy(in_quanta_D).float().view(2, BLOCK), KEY, place)
    assert np.array_equal(codes_BC.view(-1), np.trunc(in_quanta_D + np.copysign(uniform_D, in_quanta_D)))


@ways
@both
def test_vectors_lie_anywhere(way: str, form: Blocks) -> None:
    numbers_D = finite(1500, 8)
    flush_in_place(numbers_D)
    right_D, raw = by_definition(form, numbers_D[::3].copy(), KEY)
    with coded_by(way):
        found_D, packed = form.round_and_pack(there(way, numbers_D)[::3], KEY)
        assert same(here(found_D), right_D)
        assert packed == raw
        assert form.pack(there(way, np.repeat(right_D, 3))[::3]) == raw


@pytest.mark.parametrize("way", ["definition", "loops", "tensors"])
@both
def test_a_machine_that_flushes_has_the_same_bits(way: str, form: Blocks) -> None:
    """As GPUs may: what is below 2⁻¹²⁶ on the way to a code is 0, read or written."""
    numbers_D = hostile(50 * BLOCK, 7)
    right = [by_definition(form, numbers_D, key) for key in (b"", KEY)]
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot be told to flush")
    try:
        assert float(torch.tensor(2.0**-126) * 0.5) == 0.0
        with coded_by(way):
            found = [form.round_and_pack(torch.from_numpy(numbers_D), key) for key in (b"", KEY)]
            again = [form.unpack_to(packed, torch.device("cpu")) for _, packed in found]
    finally:
        torch.set_flush_denormal(False)
    for (found_D, packed), there_D, (right_D, raw) in zip(found, again, right, strict=True):
        assert packed == raw
        assert there_D is not None
        assert same(here(found_D), right_D)
        assert same(here(there_D), right_D)


def test_threads_change_no_bit() -> None:
    before, numbers_D = torch.get_num_threads(), torch.from_numpy(hostile(4 * CHUNK, 6))
    found: list[tuple[Tensor, memoryview]] = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(INT8.round_and_pack(numbers_D, KEY))
    finally:
        torch.set_num_threads(before)
    for row_D, packed in found[1:]:
        assert torch.equal(row_D.view(torch.int32), found[0][0].view(torch.int32))
        assert packed == found[0][1]


@ways
def test_golden_vectors(way: str) -> None:
    with coded_by("definition"):
        right = codes()
    with coded_by(way):
        assert codes() == right


def test_loops_are_loaded_once() -> None:
    with coded_by("loops"):
        Code.known["int8"].prepare(1)
        Code.known["float32"].prepare(1)
