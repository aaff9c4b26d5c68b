"""Loops in Triton against PyTorch's operations and the library: on a GPU, or by Triton's interpreter; skipped without Triton.

`TRITON_INTERPRET=1 python -m pytest -q tests/clip/test_triton.py` runs them without a GPU.
"""

import hashlib
import os
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.clip.nasty import any_bits, finite, moderate, seeds
from tests.clip.test_block_ways import by_definition, hostile
from tests.clip.test_blocks import both, drawn, same
from troth.clip import on_device
from troth.clip.blocks import BLOCK, INT8, Blocks, uniforms
from troth.clip.rounded_center import OTHER_BITS, farthest_by_torch
from troth.crypto import sign_bytes, tagged_hash

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytest.importorskip("triton")
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

from troth.clip import triton_blocks, triton_loops, triton_sha256  # noqa: E402  # only where Triton is

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
PROPERTY = hypothesis_settings(max_examples=8, deadline=None, derandomize=True)
sizes = st.sampled_from([1, 63, 64, 257, 4097, 9001])
KEY = tagged_hash("key")


def there(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE)


@PROPERTY
@given(sizes, seeds)
def test_odd_numbers(size: int, seed: int) -> None:
    for numbers_D in (any_bits(size, seed), finite(size, seed), np.ones(size, np.float32)):
        found = int(triton_loops.odd_numbers(there(numbers_D).view(torch.int32)))
        assert (bool(found & 1), bool(found & 2)) == on_device.odd_numbers(torch.from_numpy(numbers_D))


@PROPERTY
@given(sizes, seeds)
def test_finite_or_zero(size: int, seed: int) -> None:
    for numbers_D in (any_bits(size, seed), finite(size, seed)):
        found_D = triton_loops.finite_or_zero(there(numbers_D).view(torch.int32)).cpu()
        assert torch.equal(found_D, on_device.finite_or_zero(torch.from_numpy(numbers_D)).view(torch.int32))


@PROPERTY
@given(sizes, seeds)
def test_squared_parts(size: int, seed: int) -> None:
    numbers_D, bounds = moderate(size, seed), (0, size // 3, size // 3, size)
    found_S = triton_loops.squared_parts(there(numbers_D), torch.tensor(bounds, device=DEVICE), size)
    right_S = on_device.squared_parts(torch.from_numpy(numbers_D), bounds)
    np.testing.assert_allclose(found_S.cpu().numpy(), right_S, rtol=1e-13)


@PROPERTY
@given(sizes, st.sampled_from([1, 2, 5, 16, 17]), seeds)
def test_inner_products(size: int, peers: int, seed: int) -> None:
    rows_PD, center_D = np.stack([moderate(size, seed + p) for p in range(peers)]), moderate(size, seed + 99)
    found_PP = triton_loops.gram(there(rows_PD), there(center_D)).cpu().numpy()
    right_PP = on_device.gram(torch.from_numpy(rows_PD), torch.from_numpy(center_D))
    norm_P = np.sqrt(right_PP.diagonal())
    assert (np.abs(found_PP - right_PP) <= 2.0**-44 * np.outer(norm_P, norm_P)).all()
    assert np.array_equal(found_PP, found_PP.T)


@PROPERTY
@given(sizes, st.integers(1, 3), seeds)
def test_differences(size: int, peers: int, seed: int) -> None:
    rows_PD, center_D = np.stack([moderate(size, seed + p) for p in range(peers)]), moderate(size, seed + 9)
    bounds, signs_DB = (0, size // 2, size), sign_bytes(KEY, 16, 0, size)
    words_D = there(signs_DB.copy()).view(torch.int16).view(-1)
    found_SPK = triton_loops.differences(
        there(rows_PD), there(center_D), words_D, torch.tensor(bounds, device=DEVICE), size
    )
    right = on_device.differences(
        torch.from_numpy(rows_PD), torch.from_numpy(center_D), bounds, torch.from_numpy(signs_DB.copy())
    )
    sums_SPK = found_SPK.cpu().numpy()
    np.testing.assert_allclose(sums_SPK[..., -2], right.squares_SP, rtol=1e-12)
    np.testing.assert_allclose(sums_SPK[..., -1], right.lengths_SP, rtol=1e-12)
    off_SPK = np.abs(sums_SPK[..., :-2] - right.products_SPK)
    assert (off_SPK <= 1e-12 * np.sqrt(right.squares_SP)[..., None]).all()


@both
@PROPERTY
@given(st.sampled_from([1, 254, 255, 256, 510, 3 * 255 + 7, 5000]), seeds, st.booleans())
def test_codes_have_the_bits_of_the_definition(form: Blocks, size: int, seed: int, nearest: bool) -> None:
    """[C4] In every way to be awkward; a vector that lies anywhere."""
    key = b"" if nearest else np.random.default_rng(seed).bytes(8)
    for numbers_D in (hostile(size, seed), drawn(size, seed)):
        right_D, right = by_definition(form, numbers_D, key)
        for given_D in (there(numbers_D), there(np.repeat(numbers_D, 2))[::2]):
            found_D, raw = triton_blocks.coded(form, given_D, key)
            assert same(found_D.cpu().numpy(), right_D)
            assert bytes(raw.cpu().numpy().data) == right
        again_D, raw = triton_blocks.coded(form, found_D)
        assert same(again_D.cpu().numpy(), right_D)
        assert bytes(raw.cpu().numpy().data) == right


@both
def test_no_codes_of_nothing(form: Blocks) -> None:
    found_D, raw = triton_blocks.coded(form, there(np.empty(0, np.float32)))
    assert (len(found_D), len(raw)) == (0, 0)


@PROPERTY
@given(st.sampled_from([1, 254, 255, 256, 7 * 255 + 1]), st.integers(1, 5), seeds)
def test_the_farthest_number(size: int, peers: int, seed: int) -> None:
    """[T6] To the last bit; of rows that lie apart too."""
    chance, center_D = np.random.default_rng(seed), moderate(size, seed)
    rows_PD = np.stack([moderate(size + 3, seed + p) for p in range(peers)])[:, :size]
    share_P, drift_P = chance.random(peers), chance.random(peers) * 1e-3
    factors_B = np.exp2(chance.integers(-40, 40, -(-size // BLOCK))) / 1.01
    right = farthest_by_torch(torch.from_numpy(rows_PD), torch.from_numpy(center_D), share_P, drift_P, factors_B)
    some = share_P, drift_P, factors_B, OTHER_BITS
    assert triton_blocks.farthest_number(there(rows_PD), there(center_D), *some) == right
    assert triton_blocks.farthest_number(there(rows_PD.T).T, there(center_D), *some) == right


@pytest.mark.parametrize("place", [0, 5, (1 << 32) - 300, (1 << 32) - 255, (1 << 32) - 1, 1 << 32, (3 << 32) - 77])
def test_chance_goes_by_the_coordinate(place: int) -> None:
    """[C4] Also where 2³² coordinates end within a block, and with keys whose words are negative ones of 32 bits."""
    numbers_D = drawn(510, 3)
    for key in (bytes(range(8)), bytes(range(248, 256)), bytes(8), bytes(7) + b"\x80", b"\x01" + bytes(7)):
        right_D = INT8.rounded(numbers_D, uniforms(key, place, place + 510))
        assert same(triton_blocks.coded(INT8, there(numbers_D), key, place)[0].cpu().numpy(), right_D)


@pytest.mark.parametrize(
    "lengths",
    [[0], [4], [52, 56, 60], [64, 116, 120, 124, 128], list(range(80)), [2000, 0, 13]],
)
def test_sha256_of_pieces_of_any_length(lengths: list[int]) -> None:
    """Every way in which the last block can end, and pieces of different lengths side by side."""
    numbers = any_bits(700, 5).view(np.int32)
    starts = [37 * k % 90 for k in range(len(lengths))]
    found_N8 = triton_sha256.sha256(
        there(numbers), torch.tensor(starts, device=DEVICE), torch.tensor(lengths, device=DEVICE)
    )
    hashes = [row.astype(">i4").tobytes() for row in found_N8.cpu().numpy()]
    raw = numbers.tobytes()
    pieces = [raw[4 * start : 4 * start + length] for start, length in zip(starts, lengths, strict=True)]
    assert hashes == [hashlib.sha256(piece).digest() for piece in pieces]


@PROPERTY
@given(st.integers(1, 3), st.sampled_from([4, 28, 160]), seeds)
def test_sha256_of_leaves_of_vectors(count: int, width: int, seed: int) -> None:
    """What a blob's digest is made of, span by span and vector by vector."""
    host = [torch.from_numpy(any_bits(100, seed + k)).view(torch.uint8) for k in range(count)]
    vectors, bounds = [vector_D.to(DEVICE)[:397] for vector_D in host], (0, 120, 120, 397)
    starts_L, lengths_L = on_device._leaves(bounds, width)
    away_V = np.array([vector_D.data_ptr() - vectors[0].data_ptr() for vector_D in vectors]) // 4
    places_2N = there(np.stack([(away_V[:, None] + starts_L // 4).reshape(-1), np.tile(lengths_L, len(vectors))]))
    found = [row.astype(">i4").tobytes() for row in on_device.begin_hashes(vectors, places_2N).cpu().numpy()]
    raw = [vector_D.numpy().tobytes()[start:stop] for vector_D in host for start, stop in pairwise(bounds)]
    leaves = [some[at : at + width] for some in raw for at in range(0, len(some), width)]
    assert found == [hashlib.sha256(leaf).digest() for leaf in leaves]
