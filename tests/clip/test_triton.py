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
from troth.clip import on_device
from troth.crypto import sign_bytes, tagged_hash

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytest.importorskip("triton")
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

from troth.clip import triton_loops, triton_sha256  # noqa: E402  # only where Triton is

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


@pytest.mark.parametrize("lengths", [[0], [1], [13, 14, 15], [16, 29, 30, 31, 32], list(range(20)), [500, 0, 3]])
def test_sha256_of_pieces_of_any_length(lengths: list[int]) -> None:
    """Every way in which the last block can end, and pieces of different lengths side by side."""
    numbers = any_bits(600, 5).view(np.int32)
    starts = [37 * k % 90 for k in range(len(lengths))]
    found_N8 = triton_sha256.sha256(
        there(numbers), torch.tensor(starts, device=DEVICE), torch.tensor(lengths, device=DEVICE)
    )
    hashes = [row.astype(">i4").tobytes() for row in found_N8.cpu().numpy()]
    pieces = [numbers[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    assert hashes == [hashlib.sha256(piece.tobytes()).digest() for piece in pieces]


@PROPERTY
@given(st.integers(1, 3), st.sampled_from([1, 7, 40]), seeds)
def test_sha256_of_leaves_of_vectors(count: int, width: int, seed: int) -> None:
    """What a blob's digest is made of, span by span and vector by vector."""
    host = [torch.from_numpy(any_bits(100, seed + k)) for k in range(count)]
    vectors, bounds = [vector_D.to(DEVICE) for vector_D in host], (0, 30, 30, 100)
    starts_L, lengths_L = on_device._leaves(bounds, width)
    away_V = np.array([vector_D.data_ptr() - vectors[0].data_ptr() for vector_D in vectors]) // 4
    places_2N = there(np.stack([(away_V[:, None] + starts_L).reshape(-1), np.tile(lengths_L, len(vectors))]))
    found = [row.astype(">i4").tobytes() for row in on_device.begin_hashes(vectors, places_2N).cpu().numpy()]
    raw = [vector_D.numpy()[start:stop].tobytes() for vector_D in host for start, stop in pairwise(bounds)]
    leaves = [some[at : at + 4 * width] for some in raw for at in range(0, len(some), 4 * width)]
    assert found == [hashlib.sha256(leaf).digest() for leaf in leaves]
